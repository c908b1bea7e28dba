"""``holdfast sql``: a script of SQL as a job, and a prompt that asks a job which runs somewhere else.

The prompt needs no Spark of its own: the driver of the job answers, which it finds by the job's store.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table
from rich.text import Text

import holdfast as hf
from holdfast.errors import HoldfastError, PlanError, StoreError
from holdfast.log.ledger import Ledger
from holdfast.log.records import JobFile
from holdfast.log.store import Store
from holdfast.wire import tokens
from holdfast.wire.client import Client, Unreachable
from holdfast.wire.locations import MASTER
from holdfast.wire.messages import Address
from holdfast.wire.questions import Answered, AskSql

MOST_ROWS = 200
"""So many are shown."""
ASK_SECONDS = 600.0
SHOWN_SECONDS = 5.0
_PART = re.compile(r"(?:'(?:[^']|'')*'|`[^`]*`|[^;'`])+")
"""Up to a semicolon that is not within quotes."""
PROMPT, MORE = "sql> ", "...> "


# ------------------------------------------------------------------------------------------------ a script


def run_script(file: str, store: str | None, containers: int, trigger: str | None, dialect: str) -> int:
    """Run what the file says until it ends, or somebody ends it."""
    path = Path(file)
    if not path.is_file():
        raise PlanError(f"There is no file '{file}'.", safe="Nothing was started.")
    spark = SparkSession.builder.master("local[*]").appName(path.stem).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        kept = store or f"{path.stem}.state"
        job = hf.Job(path.stem, spark, store=kept)
        last = job.sql(path.read_text(), dialect=dialect)
        if not job._sinks:
            last.write("console", truncate=False)
        with job.start(containers=containers, trigger=trigger) as run:
            print(f"Job '{job.name}' runs, with its state in {kept}. Ctrl-C ends it.", file=sys.stderr, flush=True)
            with _telling(run):
                run.await_termination()
    finally:
        spark.stop()
    return 0


@contextmanager
def _telling(run: hf.Run) -> Iterator[None]:
    """Meanwhile, now and then, a line on how far the run is."""
    over = threading.Event()

    def tell() -> None:
        told = 0
        while not over.wait(SHOWN_SECONDS):
            try:
                status = run.status()
            except HoldfastError:
                return
            if status.epoch != told:
                told = status.epoch
                print(f"epoch {status.epoch}, {status.rows:,} rows", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tell, daemon=True, name="holdfast-telling")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ------------------------------------------------------------------------------------------------ a prompt


def ask(store: str | None, job: str = "") -> int:
    """Questions from the terminal, or from a pipe, to the running job of a store; of a hub, to one ``job`` of it."""
    console, errors = Console(), Console(stderr=True, soft_wrap=True)
    try:
        if store is None:
            raise PlanError(
                "holdfast sql was given neither a file nor a store.",
                todo="holdfast sql FILE runs a script; holdfast sql --store FOLDER asks the job that runs there.",
            )
        running = _Running(store, job)
    except HoldfastError as error:
        errors.print(str(error), markup=False, highlight=False)
        return 1
    interactive = sys.stdin.isatty()
    if interactive:
        _remember_lines()
        console.print(
            f"Job '{job or running.name}'. Questions end with a semicolon; Ctrl-D leaves.",
            markup=False,
            highlight=False,
        )
    failed = False
    with running:
        for text in _questions(interactive):
            try:
                _show(console, running.ask(text))
                failed = False
            except HoldfastError as error:
                errors.print(str(error), markup=False, highlight=False)
                failed = True
            except KeyboardInterrupt:
                console.print("given up", markup=False)
    return int(failed)


class _Running:
    """The driver of a job, found by its store."""

    def __init__(self, store: str, job: str) -> None:
        self._job = job
        ledger = Ledger(Store(store))
        owner = ledger.newest_owner()
        if owner is None:
            raise StoreError(f"No job has ever run on the store {ledger.store.uri}.", todo="Start it first.")
        file = JobFile.from_bytes(ledger.store.read(JobFile.file), JobFile.file)
        self.name = file.name
        self._where = owner.address
        self._client = Client(Address(MASTER, owner.address), tokens.find(file.job_id, owner.incarnation))

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, text: str) -> Answered:
        try:
            return self._client.call(AskSql(text, self._job), ASK_SECONDS)
        except Unreachable as error:
            raise StoreError(
                f"Job '{self.name}' is not running: its driver at {self._where} does not answer.",
                safe="The state is safe in the store.",
                todo="Start the job, then ask again.",
            ) from error


def _questions(interactive: bool) -> Iterator[str]:
    return _typed() if interactive else (part for part in _PART.findall(sys.stdin.read()) if part.strip())


def _typed() -> Iterator[str]:
    """What is typed, up to each semicolon."""
    lines: list[str] = []
    while True:
        try:
            line = input(MORE if lines else PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            lines = []
            continue
        if not lines and line.strip().lower() in ("", "exit", "quit"):
            if line.strip():
                return
            continue
        lines.append(line)
        if line.rstrip().endswith(";"):
            yield "\n".join(lines)
            lines = []


def _remember_lines() -> None:
    try:
        import readline
    except ImportError:  # then a line cannot be taken back, and that is all
        return
    readline.parse_and_bind("tab: complete")


def _show(console: Console, answer: Answered) -> None:
    with pa.ipc.open_stream(answer.rows) as reader:
        rows = reader.read_all()
    shown = Table(title=None, show_lines=False)
    for name in rows.column_names:
        shown.add_column(Text(name), overflow="fold")
    for row in rows.slice(0, MOST_ROWS).to_pylist():
        shown.add_row(*[Text("NULL" if value is None else str(value)) for value in row.values()])
    console.print(shown)
    more = f", {MOST_ROWS} shown" if rows.num_rows > MOST_ROWS else ""
    console.print(f"{rows.num_rows} rows{more}, epoch {answer.epoch}", markup=False, highlight=False)
