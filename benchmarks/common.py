"""What the benchmarks share: input, sessions, one process a contestant, the table and the line of JSON.

Every contestant runs in a process (and a JVM) of its own, one after the other, so that none inherits
another's warm caches or full heap. The coordinating process never starts Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

DATA = Path(__file__).parent / "data"
FILES_PER_EPOCH = 4
CORES = 2

console = Console()


@dataclass(frozen=True)
class Clicks:
    """Uniform int64 keys ``k`` below ``keys`` and int64 values ``v``, in files of a quarter epoch each."""

    rows: int
    keys: int
    epoch_rows: int

    @property
    def files(self) -> int:
        return max(1, round(self.rows * FILES_PER_EPOCH / self.epoch_rows))

    @property
    def folder(self) -> Path:
        return DATA / f"uniform-{self.rows}-{self.keys}-{self.epoch_rows}"

    def make(self) -> Path:
        """Writes the files unless they are there; the same numbers every time, on every machine."""
        if self.folder.exists():
            return self.folder
        console.print(f"Writing {self.rows:,} rows into {self.files} files ...")
        DATA.mkdir(exist_ok=True)
        half_done = Path(tempfile.mkdtemp(dir=DATA, prefix="_"))
        half_done.chmod(0o755)
        bounds = np.linspace(0, self.rows, self.files + 1).astype(int)
        first_second = int(time.time()) - self.files - 60
        for number, rows in enumerate(np.diff(bounds)):
            random = np.random.default_rng([2024, number])
            table = pa.table({"k": random.integers(0, self.keys, rows), "v": random.integers(0, 1000, rows)})
            file = half_done / f"part-{number:05d}.parquet"
            pq.write_table(table, file)
            # Spark's file source takes files in order of their time: give each a second of its own.
            os.utime(file, (first_second + number, first_second + number))
        half_done.rename(self.folder)
        return self.folder

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", FILES_PER_EPOCH)
        return reader.parquet(str(self.folder))

    def batch(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema("k long, v long").parquet(str(self.folder))


@contextmanager
def session(memory: str, **settings: object) -> Iterator[SparkSession]:
    """A Spark on two cores that leaves nothing behind."""
    with scratch() as folder:
        builder = SparkSession.builder.master(f"local[{CORES}]").appName("holdfast-benchmark")
        fixed = {
            "spark.driver.memory": memory,
            "spark.local.dir": folder,
            "spark.sql.warehouse.dir": folder / "warehouse",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": CORES,
            "spark.python.unix.domain.socket.enabled": "true",  # for everybody's Python, Holdfast's and Spark's own
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.numRecentProgressUpdates": 100_000,
        }
        for name, value in {**fixed, **settings}.items():
            builder = builder.config(name, str(value))
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()


def files_of(name: str, files: int, columns: Callable[[np.random.Generator], Mapping[str, Any]]) -> Path:
    """A folder of Parquet files, a second apart, so that Spark takes them in their order; the same ones every time."""
    folder = DATA / name
    if folder.exists():
        return folder
    console.print(f"Writing {name} ...")
    DATA.mkdir(exist_ok=True)
    half_done = Path(tempfile.mkdtemp(dir=DATA, prefix="_"))
    first_second = int(time.time()) - files - 60
    for number in range(files):
        file = half_done / f"part-{number:05d}.parquet"
        pq.write_table(pa.table(dict(columns(np.random.default_rng([2026, number])))), file)
        os.utime(file, (first_second + number, first_second + number))
    half_done.rename(folder)
    return folder


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the disk of the data, not in a memory file system that would make syncing free."""
    DATA.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=DATA, prefix="_scratch-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--quick", action="store_true", help="a small size, done within a minute")
    made.add_argument("--memory", default="8g", help="the JVM's heap, the same for everybody")
    made.add_argument("--contestant", help=argparse.SUPPRESS)  # this process is one of the contestants
    return made


def choose(made: argparse.ArgumentParser, names: Sequence[str]) -> None:
    made.add_argument("--contestants", nargs="+", choices=names, default=list(names), metavar="NAME")


def measure_apart(contestant: str) -> dict[str, Any]:
    """Runs this very command again as ``contestant``, in a process of its own; returns what it reports."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, *sys.argv, "--contestant", contestant]
    with console.status(f"{contestant} ..."):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        sys.exit(f"{contestant} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr[-8000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def spread(values: Sequence[float]) -> str:
    """How far apart repeated measurements lie, relative to their median."""
    if len(values) < 2:
        return "–"
    return f"±{(max(values) - min(values)) / 2 / median(values):.0%}"


def table(title: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left", min_width=min(len(title), 100))
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left")
    return made


def report(shown: Table, result: dict[str, Any]) -> None:
    console.print(shown)
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in result.items()}
    print(json.dumps(rounded), flush=True)
