"""Jars and wheels of the services, fetched once into a cache, each compared with the hash that is locked for it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "services"


class Missing(Exception):
    """What these tests need and this machine has not: they are not run, and say so."""


def jars(section: str) -> list[Path]:
    """The jars of a section of ``jars.lock``."""
    lock = _section(section)
    key = hashlib.sha256(repr(lock).encode()).hexdigest()[:12]
    return sorted(_cached(f"{section}-{key}", lambda folder: _by_maven(folder, lock)).glob("*.jar"))


def packages() -> Path:
    """A folder for ``sys.path`` with what ``requirements.lock`` names."""
    lock = HERE / "requirements.lock"
    python = f"{sys.version_info.major}{sys.version_info.minor}"
    key = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]

    def fetch(folder: Path) -> None:
        _run([*pip, "--require-hashes", "--target", str(folder), "-r", str(lock)], "pip")

    return _cached(f"python{python}-{key}", fetch)


def _cached(name: str, fetch: Callable[[Path], None]) -> Path:
    """A folder that is there whole or not at all."""
    folder = CACHE / name
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            fetch(made)
            if not folder.exists():
                made.rename(folder)
    return folder


def _section(name: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    section = ""
    for line in (HERE / "jars.lock").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#") and section == name:
            coordinate, digest = line.split()
            found.append((coordinate, digest))
    return found


def _by_maven(folder: Path, lock: list[tuple[str, str]]) -> None:
    if shutil.which("mvn") is None:
        raise Missing("Maven is missing (apt-get install maven)")
    with tempfile.TemporaryDirectory() as project:
        (Path(project) / "pom.xml").write_text(_pom([coordinate for coordinate, _ in lock]))
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        _run(["mvn", "--batch-mode", "--quiet", "-f", project, *copy], "Maven")
    wanted = {digest: coordinate for coordinate, digest in lock}
    got = {hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.glob("*.jar")}
    assert got == wanted.keys(), f"not what is locked: {[wanted[one] for one in wanted.keys() - got]}"


def _pom(coordinates: list[str]) -> str:
    """Each of them and nothing that it asks for: the lock has all of it."""
    dependencies = []
    for coordinate in coordinates:
        group, artifact, version, *classifier = (escape(part) for part in coordinate.split(":"))
        kind = f"<classifier>{classifier[0]}</classifier>" if classifier else ""
        dependencies.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>{kind}"
            "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>holdfast</groupId><artifactId>services</artifactId><version>1</version>"
        f"<dependencies>{''.join(dependencies)}</dependencies></project>"
    )


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    if done.returncode:
        raise Missing(f"{what} could not fetch: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
