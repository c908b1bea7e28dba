"""Drills: a real driver in its own process, killed where the test says, and an oracle that knows the right answer."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import driver
import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.api.keyed import StageStream
from holdfast.api.status import ContainerStatus
from holdfast.log.ledger import Ledger
from holdfast.log.segment import Segment
from holdfast.log.store import Store
from holdfast.plan.graph import Output

register_pickle_by_value(driver)  # Spark's workers cannot import it
DRIVER = Path(__file__).with_name("driver.py")
FIRST_SECOND = 1_767_225_600
NEVER = 300.0
"""Seconds after which something that should have happened will not: no measure, only an end to waiting."""


def write_files(folder: Path, files: int, rows: int, keys: int, seed: int) -> None:
    """Parquet files in a fixed order: Spark takes them by modification time."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    start = time.time() - 10_000
    for number in range(files):
        _write(folder / f"{number:04d}.parquet", draw, rows, keys, start + number, number)


def _write(path: Path, draw: np.random.Generator, rows: int, keys: int, modified: float, number: int) -> None:
    # Event times overlap those of the files before and after by more than a stage's lateness: some rows come too late.
    micros = (FIRST_SECOND + 4 * number) * 1_000_000 + draw.integers(-5_000_000, 4_000_000, rows)
    table = pa.table(
        {
            "k": draw.integers(0, keys, rows),
            "g": pa.array([f"g{value}" for value in draw.integers(0, 30, rows)]),
            "v": pa.array(draw.integers(-1000, 1000, rows), mask=draw.random(rows) < 0.05),
            "x": draw.normal(size=rows),
            "t": pa.array(micros, pa.timestamp("us", tz="UTC")),
        }
    )
    pq.write_table(table, path, row_group_size=max(1, rows // 4))
    os.utime(path, (modified, modified))


def equal(found: str, truth: str, **tables: pa.Table) -> None:
    """Exact but for floats, which agree to 1e-9."""
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        ours = connection.sql(f"SELECT * FROM ({found}) ORDER BY ALL").to_arrow_table()
        theirs = connection.sql(f"SELECT * FROM ({truth}) ORDER BY ALL").to_arrow_table()
    assert ours.column_names == theirs.column_names
    assert ours.num_rows == theirs.num_rows
    for name in ours.column_names:
        mine, right = ours[name].to_pylist(), theirs[name].to_pylist()
        if any(isinstance(value, float) for value in right):
            np.testing.assert_allclose(
                np.array(mine, dtype=float), np.array(right, dtype=float), rtol=1e-9, err_msg=name
            )
        else:
            assert mine == right, name


@dataclass
class Drill:
    """One job in one folder; ``run`` may be called as often as it takes."""

    base: Path
    files: int = 6
    rows: int = 4000
    keys: int = 500
    seed: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    python: str = sys.executable

    def __post_init__(self) -> None:
        for folder in ("out", "result", "faults"):
            (self.base / folder).mkdir(parents=True)
        write_files(self.base / "input", self.files, self.rows, self.keys, self.seed)
        if self.config.get("shape") == "sources":
            write_files(self.base / "input2", self.files, self.rows // 2, self.keys, self.seed + 1)
        self.config = {
            "master": "local[2]",
            "input": str(self.base / "input"),
            "input2": str(self.base / "input2"),
            "store": str(self.base / "store"),
            "out": str(self.base / "out"),
            "result": str(self.base / "result"),
            **self.config,
        }

    def plant(self, *faults: str) -> None:
        for fault in faults:
            (self.base / "faults" / fault).touch()

    @property
    def planted(self) -> list[str]:
        return sorted(path.name for path in (self.base / "faults").iterdir())

    def start(self, **changes: Any) -> subprocess.Popen[str]:
        config = self.base / f"config-{time.monotonic_ns()}.json"
        config.write_text(json.dumps({**self.config, **changes}))
        environment = {
            **os.environ,
            "HOLDFAST_FAULTS": str(self.base / "faults"),
            "DRILL": str(config),
            "PYSPARK_PYTHON": self.python,
            "PYSPARK_DRIVER_PYTHON": self.python,
        }
        return subprocess.Popen(
            [self.python, str(DRIVER), str(config)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.base,
        )

    def run(self, timeout: float = NEVER, **changes: Any) -> Ended:
        """Run the driver to its end, whatever that is, and see that nothing of it is left."""
        process = self.start(**changes)
        return finish(process, timeout)

    def run_here(
        self,
        spark: SparkSession,
        monkeypatch: pytest.MonkeyPatch,
        during: Callable[[hf.Run], None] | None = None,
        **changes: Any,
    ) -> None:
        """Run the job in this process: what dies are containers and Spark's workers, never the driver."""
        monkeypatch.setenv("HOLDFAST_FAULTS", str(self.base / "faults"))
        driver.drive({**self.config, **changes}, spark, during)

    def add_file(self) -> None:
        """One more epoch's rows, which appear at once or not at all."""
        path = self.base / "input" / f"{self.files:04d}.parquet"
        hidden = self.base / path.name
        _write(
            hidden,
            np.random.default_rng((self.seed, self.files)),
            self.rows,
            self.keys,
            time.time() - 5_000 + self.files,
            self.files,
        )
        hidden.rename(path)
        self.files += 1

    @contextlib.contextmanager
    def flowing(self, committed: Callable[[], int], most: int = 150) -> Iterator[None]:
        """While this lasts epochs follow each other: there is a new file whenever the last one is committed."""
        over = threading.Event()

        def flow() -> None:
            while not over.wait(0.02):
                if committed() >= self.files and self.files < most:
                    self.add_file()

        thread = threading.Thread(target=flow, name="flow")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    # --- the oracle ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """State and sinks equal what a batch query over the same files says; no two owners of a slice were unlike."""
        assert not [text for _, text in self.report["events"] if "it stays on" in text]
        shape = self.config.get("shape")
        if shape in ("graph", "all"):
            self.check_graph()
        if shape != "graph":
            self.check_state()
            self.check_sinks()

    def check_graph(self) -> None:
        """Windows, groups of them and the best of those: each row in the epoch in which it had to come."""
        rows = " UNION ALL ".join(
            f"SELECT {epoch} AS epoch, k, v, t::TIMESTAMP AS t FROM read_parquet({paths})"
            for epoch, paths in enumerate(self.epochs(), 1)
        )
        windows = f"""
            WITH all_rows AS (SELECT *, time_bucket(INTERVAL '10 seconds', t) AS window_start FROM ({rows})),
            epochs AS (
                SELECT epoch, max(max(t)) OVER (ORDER BY epoch) - INTERVAL '2 seconds' AS watermark
                FROM all_rows GROUP BY epoch),
            kept AS (
                SELECT r.* FROM all_rows r LEFT JOIN epochs before ON before.epoch = r.epoch - 1
                WHERE window_start + INTERVAL '10 seconds' > coalesce(before.watermark, window_start)),
            windows AS (
                SELECT k, window_start, window_start + INTERVAL '10 seconds' AS window_end, count(*) AS n,
                       sum(v) AS total
                FROM kept GROUP BY k, window_start)
            SELECT w.*, min(e.epoch) AS _epoch FROM windows w JOIN epochs e ON e.watermark >= w.window_end
            GROUP BY ALL"""
        plain = "k, window_start::TIMESTAMP AS window_start, window_end::TIMESTAMP AS window_end, n, total, _epoch"
        found = f"SELECT {plain} FROM read_parquet({committed_files(self.base / 'out' / 'windows')})"
        equal(found, windows)
        groups = f"SELECT window_start, n, count(*) AS keys, sum(total) AS sum FROM ({windows}) GROUP BY ALL"
        equal(
            f"SELECT window_start::TIMESTAMP AS window_start, n, keys, sum FROM '{self.base}/result/groups.parquet'",
            groups,
        )
        best = f"""
            SELECT window_start, row_number() OVER (PARTITION BY window_start ORDER BY keys DESC, n) AS rank,
                   keys, n, sum
            FROM ({groups}) QUALIFY rank <= 3"""
        held = "window_start::TIMESTAMP AS window_start, rank, keys, n, sum"
        equal(f"SELECT {held} FROM '{self.base}/result/best.parquet'", best)
        newest = f"""
            SELECT {held} FROM read_parquet({committed_files(self.base / "out" / "best")})
            QUALIFY _epoch = max(_epoch) OVER (PARTITION BY window_start)"""
        equal(newest, best)

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.base / "result" / "report.json").read_text())
        return found

    @property
    def kinds(self) -> list[str]:
        """What happened, in a word each."""
        return [kind for kind, _ in self.report["events"]]

    def after(self, kind: str) -> list[str]:
        """What happened after the first of a kind."""
        return self.kinds[self.kinds.index(kind) + 1 :]

    def counts_of(self, key: int) -> dict[int, int]:
        """How many rows a key had after each epoch."""
        with duckdb.connect() as connection:
            return {
                epoch: connection.sql(f"SELECT count(*) FROM read_parquet({paths}) WHERE k = {key}").fetchall()[0][0]
                for epoch, paths in enumerate(itertools.accumulate(self.epochs()), 1)
            }

    def check_state(self) -> None:
        assert self.report["epoch"] == len(self.epochs())
        if self.config.get("shape") == "sources":
            self._check_sources()
            return
        rows = f"read_parquet('{self.base}/input/*.parquet')"
        equal(
            f"SELECT * FROM '{self.base}/result/one.parquet'",
            f"SELECT k, count(*) n, sum(v) total, min(g) low, max(x) high, avg(v) middle FROM {rows} GROUP BY k",
        )
        if self.config.get("shape") == "two":
            equal(
                f"SELECT * FROM '{self.base}/result/two.parquet'",
                f"SELECT n, count(*) keys, sum(total) sum FROM "
                f"(SELECT count(*) n, sum(v) total FROM {rows} GROUP BY k) GROUP BY n",
            )

    def _check_sources(self) -> None:
        left, right = (f"read_parquet('{self.base}/{name}/*.parquet')" for name in ("input", "input2"))
        equal(
            f"SELECT * FROM '{self.base}/result/one.parquet'",
            f"SELECT k, count(*) n, sum(v) total FROM {left} GROUP BY k",
        )
        equal(
            f"SELECT * FROM '{self.base}/result/both.parquet'",
            f"SELECT g, count(*) n, sum(v) total FROM (SELECT g, v FROM {left} UNION ALL SELECT g, v FROM {right}) "
            "GROUP BY g",
        )

    def check_sinks(self) -> None:
        """Every epoch is in the sinks once, with the rows that were true after it, for the keys it changed."""
        cumulative = " UNION ALL ".join(
            f"SELECT {epoch} AS epoch, * FROM read_parquet({paths})"
            for epoch, paths in enumerate(itertools.accumulate(self.epochs()), 1)
        )
        changed = " UNION ALL ".join(
            f"SELECT DISTINCT {epoch} AS epoch, k FROM read_parquet({paths})"
            for epoch, paths in enumerate(self.epochs(), 1)
        )
        truth = (
            f"WITH all_rows AS ({cumulative}), changed AS ({changed}) "
            "SELECT k, count(*) n, sum(v) total, min(g) low, max(x) high, avg(v) middle, epoch AS _epoch "
            "FROM all_rows JOIN changed USING (epoch, k) GROUP BY k, epoch"
        )
        equal(f"SELECT * FROM read_parquet({committed_files(self.base / 'out' / 'parquet')})", truth)
        equal(
            f"SELECT k, n, total, _epoch FROM read_json({committed_files(self.base / 'out' / 'json')})",
            f"SELECT k, n, total, _epoch FROM ({truth}) WHERE n > 1",
        )

    def logged_rows(self) -> pa.Table:
        """The rows of level 1 that the job's prepares name, with their epoch."""
        ledger = Ledger(Store(str(self.base / "store")), "main")
        tables = []
        for prepare in ledger.prepares(1, self.files):
            for ref in prepare.segments if prepare.level == 1 else ():
                if ref.inline is None:
                    segment = Segment.at(ledger.section, ref.name)
                else:
                    segment = Segment.open(prepare.attachments[ref.inline], prepare.file)
                for chunk in segment.chunks(0):
                    epochs = pa.array([prepare.fence.epoch] * chunk.rows.num_rows)
                    tables.append(pa.Table.from_batches([chunk.rows]).append_column("epoch", epochs))
        return pa.concat_tables(tables)

    def epochs(self) -> list[list[str]]:
        """The files of each epoch: one, but where Spark took two.

        It notes a new file before it notes that a batch is to have it. A driver that dies in between leaves a file that
        the next start puts into one batch with its successor.
        """
        inputs = sorted(str(path) for path in (self.base / "input").glob("*.parquet"))
        assert len(inputs) == self.files
        if self.report["epoch"] == self.files:
            return [[path] for path in inputs]
        offsets = self.base / "store" / "main" / "spark" / "offsets"
        batches = sorted((path for path in offsets.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        ends = [json.loads(path.read_text().splitlines()[2])["logOffset"] + 1 for path in batches]
        assert ends[-1] == self.files, "a file was not taken"
        return [inputs[begin:end] for begin, end in itertools.pairwise([0, *ends])]


@dataclass
class EpochsGoOn:
    """A run while its epochs follow each other, and what a test may do to it."""

    drill: Drill
    run: hf.Run

    @property
    def committed(self) -> int:
        return self.run._shell.machine.committed

    @property
    def alive(self) -> list[ContainerStatus]:
        return [one for one in self.run.status().containers if one.alive]

    @property
    def stream(self) -> hf.StageStream:
        """The first one of the job that keeps state."""
        job = self.run.job
        return StageStream(job, Output(job._stages[0].node, "", True), job.spark.range(0))

    def slices(self) -> dict[str, int]:
        return {one.name: one.slices for one in self.alive}

    def epochs(self, count: int, seconds: float = NEVER) -> None:
        """Wait until so many more are committed."""
        goal = self.committed + count
        assert self.run._shell.wait_for(lambda: self.committed >= goal, seconds), f"stuck: {self.run.status()}"
        self.run._live.raise_error()

    def settle(self, seconds: float = NEVER) -> None:
        assert self.run.await_settled(seconds), f"never settled: {self.run.status()}"

    def kill(self, count: int) -> None:
        """So many containers at once; returns when it was noticed."""
        before = self._lost()
        for one in self.alive[:count]:
            self.run.kill(one.name)
        assert self.run._shell.wait_for(lambda: self._lost() >= before + count, NEVER), "nobody noticed"

    def die_at(self, place: str, act: Callable[[], None]) -> None:
        """Somebody acts, and the first container that passes a place thereafter dies there."""
        before, deadline = self._lost(), time.monotonic() + NEVER
        first = self.committed
        self.drill.plant(*[f"container@{place}@{epoch}" for epoch in range(first, first + 3)])
        try:
            act()
            while self._lost() == before:
                assert time.monotonic() < deadline, f"no container came to {place}: {self.run.status()}"
                self.drill.plant(*[f"container@{place}@{epoch}" for epoch in range(first, self.committed + 3)])
                time.sleep(0.01)
        finally:
            for fault in self.drill.planted:
                (self.drill.base / "faults" / fault).unlink(missing_ok=True)

    def _lost(self) -> int:
        return sum(event.kind == "lost" for event in self.run._shell.history.events)


@dataclass
class Ended:
    code: int
    error: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


def finish(process: subprocess.Popen[str], timeout: float = NEVER) -> Ended:
    """Wait for a driver's end; every container it started must end with it."""
    assert process.stderr is not None
    try:
        process.wait(timeout)
        left = _started_by(process)
        containers = [one for one in left if "holdfast.container" in " ".join(_command(one))]
        assert not _alive_after(30, containers), "containers outlived their driver"
    finally:  # whatever happened, the next test finds nothing of it
        ended = process.poll() is not None
        process.kill()
        for orphan in _alive_after(10 if ended else 0, _started_by(process)):  # the JVM and its Python workers
            orphan.kill()
        code = process.wait()
        with process.stderr:
            error = process.stderr.read()
    return Ended(code, error)


def _started_by(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """What a driver left, whoever is its parent by now: all of it inherited the name of the driver's config."""
    name = _config_of(process)
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.pid != process.pid and one.environ().get("DRILL") == name:
                found.append(one)
    return found


def _config_of(process: subprocess.Popen[str]) -> str:
    assert isinstance(process.args, list)
    return str(process.args[-1])


def _alive_after(seconds: float, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a zombie that nobody reaps does not."""
    deadline = time.monotonic() + seconds
    while True:
        alive = [process for process in processes if _command(process)]
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.05)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.NoSuchProcess:
        return []


def committed_files(folder: Path) -> list[str]:
    """The files that Spark's sink log names: what any Spark reader of the folder sees."""
    log = folder / "_spark_metadata"
    names: dict[str, None] = {}
    batches = sorted((path for path in log.iterdir() if path.name.split(".")[0].isdigit()), key=_batch_number)
    compacted = [path for path in batches if path.name.endswith(".compact")]
    first = _batch_number(compacted[-1]) if compacted else 0
    for path in batches:
        if _batch_number(path) >= first:
            for line in path.read_text().splitlines()[1:]:
                names[json.loads(line)["path"].removeprefix("file://")] = None
    return list(names)


def _batch_number(path: Path) -> int:
    return int(path.name.split(".")[0])


class Stage:
    """A job whose epochs go on for as long as a test does things to it, and what must be true of it afterwards."""

    def __init__(self, base: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self._base, self._spark, self._monkeypatch = base, spark, monkeypatch

    def play(self, during: Callable[[EpochsGoOn], None], rows: int = 600, **config: Any) -> Drill:
        drill = Drill(self._base, files=2, rows=rows, keys=300, config={"flows": True, **config})

        def act(run: hf.Run) -> None:
            with drill.flowing(lambda: run._shell.machine.committed):
                going = EpochsGoOn(drill, run)
                going.epochs(2)
                during(going)
                going.epochs(2)

        drill.run_here(self._spark, self._monkeypatch, act)
        drill.check()
        return drill


def until(true: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)


class Watch:
    """How far the job is, by its store alone."""

    def __init__(self, drill: Drill) -> None:
        self._store = Store(str(drill.base / "store"))

    def __call__(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            found = Ledger(self._store, "main").last_committed()
            return found.fence.epoch if found else 0
        return 0

    def go_on(self, epochs: int, seconds: float = NEVER) -> None:
        goal = self() + epochs
        until(lambda: self() >= goal, seconds, f"epoch {goal} is committed")
