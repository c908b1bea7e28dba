"""Finds the Java that Spark runs on.

Spark's own launcher takes ``JAVA_HOME`` or the first ``java`` of the path and, when that one is missing or
too old, fails with a stack trace. Here every place is looked at, each candidate is asked for its version, and
what was found wrong is said in one line. ``python -m holdfast.java`` prints the home that was chosen.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import JavaError

LEAST = 17
_JVM_FOLDER = Path("/usr/lib/jvm")
_TODO = (
    f"install Java {LEAST} or newer (Debian: apt-get install openjdk-17-jre-headless), "
    "or set JAVA_HOME to one you have."
)
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)


def find_java(jvm_folder: Path = _JVM_FOLDER) -> Path:
    """The home (what ``JAVA_HOME`` wants) of the first Java that is new enough.

    ``JAVA_HOME`` comes first, then the path, then the system's folder of Javas, oldest usable one first: that
    is the one Spark has been tested with the longest.
    """
    rejected = []
    for executable in _named_by_the_user():
        version, home = _ask(executable)
        if version >= LEAST:
            return home
        rejected.append(_why(executable, version))
    installed = [(*_ask(executable), executable) for executable in sorted(jvm_folder.glob("*/bin/java"))]
    usable = sorted((version, home) for version, home, _ in installed if version >= LEAST)
    if usable:
        return usable[0][1]
    rejected += [_why(executable, version) for version, _, executable in installed]
    found = "; ".join(rejected) if rejected else f"none in JAVA_HOME, on the path or in {jvm_folder}"
    raise JavaError(f"Spark needs Java {LEAST} or newer: {found}.", todo=_TODO)


def _named_by_the_user() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)


def _ask(executable: Path) -> tuple[int, Path]:
    """The major version (0: this is no Java) and the home, which behind a shim only Java itself knows."""
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0, executable
    said = answer.stderr + answer.stdout
    version = _VERSION.search(said)
    if version is None:
        return 0, executable
    major, minor = int(version[1]), int(version[2] or 0)
    home = _HOME.search(said)
    # Up to Java 8 the version was called 1.8.
    return (minor if major == 1 else major), (Path(home[1].strip()) if home else executable.resolve().parent.parent)


def _why(executable: Path, version: int) -> str:
    return f"{executable} is Java {version}" if version else f"{executable} does not run"


if __name__ == "__main__":
    try:
        print(find_java())
    except JavaError as error:
        sys.exit(f"{error.what} {error.todo[0].upper()}{error.todo[1:]}")
