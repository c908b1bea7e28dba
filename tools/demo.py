"""``./dev demo``: one minute that shows the whole thing, without any service.

A shop's clicks arrive as Parquet files, Holdfast keeps the running figures of every product, the terminal
shows them live from ``run.state``. Half way a container is killed. At the end the state must equal a Spark
batch query over the same files; only then is the exit code 0. The clicks are made while the demo runs, at a
steady pace, so that what one sees are many small epochs; how fast Holdfast can go is what
``./dev bench aggregate`` is for.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn
from rich.console import Console

import holdfast as hf
from holdfast.cli import with_spark
from holdfast.errors import HoldfastError
from tools.demo_view import View

PRODUCTS = 50_000
FILES = 60
SECONDS_PER_FILE = 0.6
FILES_PER_EPOCH = 4  # at most: a slow machine has epochs to show, too
SCHEMA = "product string, cents long"
_LOOKS = (
    "amber",
    "brass",
    "copper",
    "crimson",
    "dusty",
    "ebony",
    "frosted",
    "golden",
    "ivory",
    "jade",
    "linen",
)
_THINGS = (
    "basket",
    "blanket",
    "bottle",
    "candle",
    "chair",
    "clock",
    "kettle",
    "lamp",
    "mirror",
    "radio",
    "vase",
)


class Clicks:
    """Writes the click files, one after the other, in a thread of its own.

    A few products get most of the clicks (Zipf), the tail is long; the same clicks every time.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        self.rows = rows
        self.done = threading.Event()
        self.failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="clicks", daemon=True)
        folder.mkdir()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _write_all(self) -> None:
        try:
            names = product_names()
            start = time.monotonic()
            for number, rows in enumerate(np.diff(np.linspace(0, self.rows, FILES + 1).astype(int))):
                self._write(number, int(rows), names)
                if self._stop.wait(max(0.0, start + (number + 1) * SECONDS_PER_FILE - time.monotonic())):
                    return
        except Exception as error:
            self.failure = error
        finally:
            self.done.set()

    def _write(self, number: int, rows: int, names: pa.Array) -> None:
        random = np.random.default_rng([7, number])
        product = random.zipf(1.2, rows) % PRODUCTS
        cents = random.integers(100, 20_000, rows)
        table = pa.table({"product": names.take(pa.array(product)), "cents": pa.array(cents)})
        # Spark overlooks names that begin with an underscore: it never sees half a file.
        hidden = self.folder / f"_{number:05d}"
        pq.write_table(table, hidden)
        hidden.rename(self.folder / f"clicks-{number:05d}.parquet")


def product_names() -> pa.Array:
    kinds = [f"{look} {thing}" for thing in _THINGS for look in _LOOKS]
    return pa.array([f"{kinds[n * 37 % len(kinds)]} {n // len(kinds) + 1}" for n in range(PRODUCTS)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=_positive, default=6_000_000, help="clicks in all (%(default)s)")
    parser.add_argument("--containers", type=_positive, default=3, help="how many to start with (%(default)s)")
    parser.add_argument("--no-kill", action="store_true", help="let every container live")
    options = parser.parse_args(arguments)
    return with_spark(lambda: demo(rows=options.rows, containers=options.containers, kill=not options.no_kill))


def _positive(text: str) -> int:
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def demo(*, rows: int, containers: int, kill: bool) -> int:
    console = Console(highlight=False)
    console.print(f"Starting Spark and {containers} containers ...")
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
        folder = Path(name)
        with _spark(folder) as spark:
            return _show(spark, console, folder, rows, containers, kill)


def _show(spark: SparkSession, console: Console, folder: Path, rows: int, containers: int, kill: bool) -> int:
    clicks = Clicks(folder / "clicks", rows)
    job = hf.Job("demo", spark, store=str(folder / "store"))
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_EPOCH)
    products = (
        job.read(files.parquet(str(clicks.folder)))
        .key_by("product")
        .agg(clicks=hf.count(), cents=hf.sum("cents"), dearest=hf.max("cents"))
    )
    products.write("noop", mode="update")
    run = job.start(containers=containers)
    killed: str | None = None
    scaled = False
    try:
        clicks.start()
        with View(console, rows) as view:
            while True:
                status = run.status()
                if not scaled and status.rows >= rows / 4:
                    scaled = True
                    run.scale(containers=containers + 1)
                    view.say(f"Asked for {containers + 1} containers, with {status.rows:,} rows in.")
                if kill and killed is None and status.rows >= rows / 2:
                    killed = max((one for one in status.containers if one.alive), key=lambda one: one.slices).name
                    run.kill(killed)
                    view.say(f"Killed container {killed}, with {status.rows:,} rows in.")
                view.show(status, top_products(run.state(products).to_arrow()))
                if clicks.failure is not None:
                    raise clicks.failure
                if clicks.done.is_set() and status.rows >= rows:
                    break
                if run.await_termination(timeout=0.5):  # it raises what went wrong
                    raise HoldfastError("The query ended before all clicks were in.")
            run.process_all_available()
            view.show(run.status(), top_products(run.state(products).to_arrow()))
        found = run.state(products).to_arrow()
        epochs = run.status().epoch
    finally:
        clicks.stop()
        run.stop()

    console.print("Checking against a Spark batch query over the same files ...")
    expected = batch_result(spark, clicks.folder)
    if not equal(found, expected):
        sizes = f"{found.num_rows:,} products in Holdfast, {expected.num_rows:,} in the batch"
        console.print(f"[bold red]NOT EQUAL[/]: {sizes}.")
        return 1
    survived = f", through the loss of container {killed}" if killed else ""
    console.print(
        f"[bold green]Equal[/]: {found.num_rows:,} products, {pc.sum(found['clicks']).as_py():,} clicks, "
        f"{epochs:,} epochs{survived}."
    )
    return 0


def top_products(state: pa.Table, count: int = 8) -> list[tuple[str, int, int]]:
    best = state.take(pc.select_k_unstable(state, count, [("clicks", "descending")]))
    return [(row["product"], row["clicks"], row["cents"]) for row in best.to_pylist()]


def batch_result(spark: SparkSession, folder: Path) -> pa.Table:
    counted = (
        spark.read.schema(SCHEMA)
        .parquet(str(folder))
        .groupBy("product")
        .agg(fn.count("*").alias("clicks"), fn.sum("cents").alias("cents"), fn.max("cents").alias("dearest"))
    )
    return counted.toArrow()


def equal(found: pa.Table, expected: pa.Table) -> bool:
    """The same rows, in whatever order."""
    columns = ["product", "clicks", "cents", "dearest"]
    ours, theirs = (table.select(columns).sort_by("product") for table in (found, expected))
    return bool(ours.to_pydict() == theirs.to_pydict())


@contextmanager
def _spark(folder: Path) -> Iterator[SparkSession]:
    """A quiet Spark: its JVM's log goes to a file, or it would write across the picture."""
    with _error_output_to(folder / "spark.log"):
        spark = (
            SparkSession.builder.master("local[*]")
            .appName("holdfast-demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.local.dir", str(folder))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.sql.shuffle.partitions", "4")
            .getOrCreate()
        )
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _error_output_to(file: Path) -> Iterator[None]:
    """Processes started inside inherit the file as their standard error; ours comes back afterwards."""
    kept = os.dup(2)
    with file.open("wb") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


if __name__ == "__main__":
    sys.exit(main())
