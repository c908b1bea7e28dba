"""The JVMs of the tests, which live for seconds: quick to start rather than quick to run.

A third of what a short driver costs is Java loading ten thousand classes of Spark and checking them, each time the same
ones. An archive has them ready. It fits one Java and one Spark, lies in the environment they are in, and is made when
``./dev test`` runs there for the first time (``python tests/jvm.py``). Without it everything is as it was, and slower.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
"""Short lives: half the processor time goes into compiling what is hardly run again, and where Hadoop has no native
library it starts a program for every file that it makes."""
HERE = Path(__file__).parent


def archive() -> Path | None:
    """Where it is, or would be; None without a Java that says what it is, or with a path that options cannot hold."""
    java = shutil.which("java")
    home = os.environ.get("JAVA_HOME") or (Path(java).resolve().parents[1] if java else "")
    release = Path(home, "release")
    if not home or not release.is_file() or " " in sys.prefix:
        return None
    made_for = hashlib.sha256(release.read_bytes() + pyspark.__version__.encode()).hexdigest()
    return Path(sys.prefix) / f"spark-classes-{made_for[:12]}.jsa"


def options() -> str:
    """One that does not fit is passed over by Java, silently."""
    found = archive()
    if found is None or not found.exists() or not found.stat().st_size:
        return QUICK
    return f"{QUICK} -Xlog:disable -Xshare:auto -XX:SharedArchiveFile={found}"


def set_environment() -> None:
    """Of everything that is started from here: drivers, their launchers, the daemons of clusters."""
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
        os.environ.setdefault(name, options())
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK)


def make() -> None:
    """From a job that does a little of everything; one who comes second replaces it by the same."""
    wanted = archive()
    if wanted is None or wanted.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "classes.jsa")
        subprocess.run(
            [sys.executable, __file__, "run", folder],
            env={**os.environ, "SPARK_SUBMIT_OPTS": f"{QUICK} -Xlog:disable -XX:ArchiveClassesAtExit={made}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=600,
        )
        beside = wanted.with_suffix(f".{os.getpid()}")  # a name of its own, then the right one, at once
        if made.exists():
            shutil.copy(made, beside)
        else:
            print("No archive of Spark's classes could be made: tests on Spark take longer.", file=sys.stderr)
            beside.touch()  # and it is not tried again
        beside.rename(wanted)


def run(folder: str) -> None:
    """The job, and an orderly end of its JVM: that is when the archive is written."""
    sys.path.insert(0, str(HERE / "end_to_end"))
    import driver
    import kit

    config = kit.Drill(Path(folder, "job"), files=2, rows=100, config={"shape": "two"}).config
    spark = driver.session(config)
    driver.drive(config, spark)
    java = spark.sparkContext._gateway.proc
    spark.stop()
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    run(sys.argv[2]) if sys.argv[1:2] == ["run"] else make()
