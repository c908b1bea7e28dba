"""A PostgreSQL that shares the machine, and how many transactions a second it gets done meanwhile.

A cluster of its own in a scratch folder, reached by a Unix socket only, gone afterwards. As root everything of it runs
as the user ``postgres``: the server refuses to run as root.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

MISSING = "PostgreSQL is not here. On Debian, as root: apt-get install postgresql (pgbench comes with it)."
PROGRESS = re.compile(r"progress: ([\d.]+) s, ([\d.]+) tps")


class Neighbour:
    """While the context is open, pgbench's clients keep it busy; ``found`` has (time, transactions a second)."""

    def __init__(self, scale: int = 20, clients: int = 2, script: str = "select-only") -> None:
        self.found: list[tuple[float, float]] = []
        self._as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self._bin = _binaries()
        # Not below the data folder: the user postgres must be able to reach it. Not /tmp either: that may be memory.
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir="/var/tmp"))
        self._bench = [self._bin / "pgbench", "-h", self._folder, "-U", "postgres"]
        self._clients = [f"--builtin={script}", f"--client={clients}", "--jobs=1", "--time=86400"]
        self._pgbench: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read, daemon=True, name="pgbench")
        self._data = self._folder / "data"
        self._started = False
        try:
            self._start(scale)
        except BaseException:
            self._stop()
            raise

    def _start(self, scale: int) -> None:
        if self._as_user:
            shutil.chown(self._folder, "postgres")
        self._run(self._bin / "initdb", "-D", self._data, "-U", "postgres", "--auth=trust", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories={self._folder} -c shared_buffers=256MB"
        log = self._folder / "log"
        self._run(self._bin / "pg_ctl", "-D", self._data, "-w", "-l", log, "-o", options, "start")
        self._started = True
        self._run(*self._bench, "--initialize", "--quiet", f"--scale={scale}", "postgres")

    def _run(self, *command: str | Path) -> None:
        # pg_ctl's server would inherit a pipe and keep it open: a file has no such end to wait for.
        with tempfile.TemporaryFile("w+") as said:
            done = subprocess.run([*self._as_user, *command], stdout=said, stderr=said, cwd="/", check=False)
            said.seek(0)
            if done.returncode:
                sys.exit(f"{command[0]} failed with exit code {done.returncode}:\n{said.read()}")

    def _read(self) -> None:
        assert self._pgbench is not None
        assert self._pgbench.stderr is not None
        for line in self._pgbench.stderr:
            if seen := PROGRESS.search(line):
                self.found.append((float(seen[1]), float(seen[2])))

    def during(self, start: float, end: float) -> list[float]:
        """The seconds that lie in a span of time; a sample tells of the second before it."""
        return [tps for at, tps in self.found if at - 1 < end and at > start]

    def __enter__(self) -> Neighbour:
        command = [*self._as_user, *self._bench, *self._clients, "--progress=1", "--progress-timestamp", "postgres"]
        self._pgbench = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd="/")
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        # The server first: pgbench ends when its connections do, also behind runuser.
        if self._started:
            self._run(self._bin / "pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")
            self._started = False
        if self._pgbench is not None:
            self._pgbench.wait()
            self._reader.join()
        shutil.rmtree(self._folder, ignore_errors=True)


def _binaries() -> Path:
    """Debian keeps the server's programs off the path, by version."""
    places = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda place: float(place.split("/")[4]), reverse=True)
    for place in [*places, *os.get_exec_path()]:
        if all(os.access(f"{place}/{name}", os.X_OK) for name in ("initdb", "pg_ctl", "postgres", "pgbench")):
            return Path(place)
    sys.exit(MISSING)
