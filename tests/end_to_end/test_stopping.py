"""Runs that are stopped from wherever people stop them: a sink, a listener, a signal, another driver, Spark itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit import until
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

import holdfast as hf
from holdfast.driver import loop as shell
from holdfast.driver.live_job import SECTION
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark


class Rows:
    """Files of the keys 0 to 9, and jobs that count them."""

    def __init__(self, base: Path, spark: SparkSession) -> None:
        self.base, self.spark = base, spark
        (base / "in").mkdir()
        self.files = 0

    def add(self) -> None:
        self.files += 1
        pq.write_table(pa.table({"k": list(range(10))}), self.base / "in" / f"{self.files:04d}.parquet")

    def job(self, name: str = "stopping") -> tuple[hf.Job, hf.StageStream]:
        job = hf.Job(name, self.spark, store=str(self.base / "store"))
        frame = self.spark.readStream.schema("k bigint").option("maxFilesPerTrigger", 1).parquet(str(self.base / "in"))
        return job, job.read(frame).key_by("k", name="counts").agg(n=hf.count())

    def committed(self) -> int:
        found = Ledger(Store(str(self.base / "store")), SECTION).last_committed()
        return found.fence.epoch if found else 0


@pytest.fixture
def rows(tmp_path: Path, spark: SparkSession) -> Rows:
    return Rows(tmp_path, spark)


QUICK: dict[str, Any] = {"containers": 1, "slices": 2, "trigger": {"processingTime": "100 milliseconds"}}


def test_stop_in_a_sink_ends_the_run_behind_that_epoch(rows: Rows) -> None:
    rows.add()
    rows.add()
    rows.add()
    job, counts = rows.job()
    seen: list[int] = []
    running: list[hf.Run] = []
    told = threading.Event()

    def sink(frame: DataFrame, epoch: int) -> None:
        told.wait(300)
        if epoch == 2:
            running[0].stop()
            running[0].stop()  # once more is once
        seen.append(frame.count())

    counts.for_each_batch(sink)
    run = job.start(**QUICK)
    running.append(run)
    told.set()
    assert run.await_termination(300)
    run.stop()  # waits for the one under way
    assert seen == [10, 10]
    assert rows.committed() == 2
    assert run.status().phase == "stopped"
    with pytest.raises(hf.ContainerError, match="The run is stopped"):
        run.state(counts).get(1)
    job, counts = rows.job()
    counts.for_each_batch(lambda frame, epoch: None)
    with job.start(**(QUICK | {"trigger": {"availableNow": True}})) as run:
        run.await_termination()
        assert run.state(counts).get(1) == {"k": 1, "n": 3, "_epoch": 3}


def test_a_stop_does_not_wait_for_a_change_that_waits_for_an_epoch(rows: Rows) -> None:
    """The epoch is given up when the stop has no more patience, and the change would have waited for it for ever."""
    rows.add()
    job, counts = rows.job()
    inside, leave = threading.Event(), threading.Event()

    def sink(frame: DataFrame, epoch: int) -> None:
        inside.set()
        leave.wait(300)

    counts.for_each_batch(sink)
    run = job.start(**QUICK, prefetch=1)  # else the change waits until Spark's batch has failed
    assert inside.wait(300)
    with ThreadPoolExecutor(2) as pool:
        changing = pool.submit(run.update, "counts", reset=True)
        until(lambda: run._shell._gate.locked() and run._shell._brain.pump._held, 300, "the change waits")
        stopping = pool.submit(run.stop, 0.1)
        until(lambda: not run._shell.machine._busy, 300, "the epoch is given up")
        leave.set()
        with pytest.raises(hf.ContainerError, match=r"is being stopped[\s\S]*Nothing was changed"):
            changing.result(300)
        stopping.result(300)
    assert rows.committed() == 0
    job, counts = rows.job()
    counts.for_each_batch(lambda frame, epoch: None)
    with job.start(**(QUICK | {"trigger": {"availableNow": True}})) as run:
        run.await_termination()
        assert run.state(counts).get(1) == {"k": 1, "n": 1, "_epoch": 1}


def test_nobody_waits_in_a_sink_for_the_epoch_that_waits_for_it(rows: Rows) -> None:
    rows.add()
    job, counts = rows.job()
    running: list[hf.Run] = []
    told, said = threading.Event(), list[str]()

    def sink(frame: DataFrame, epoch: int) -> None:
        told.wait(300)
        for wait in (running[0].process_all_available, running[0].await_termination):
            with pytest.raises(hf.PlanError, match="in a sink would wait for the epoch") as refused:
                wait()
            said.append(str(refused.value).splitlines()[0].split("(")[0])

    counts.for_each_batch(sink)
    with job.start(**QUICK) as run:
        running.append(run)
        told.set()
        run.process_all_available()
        assert rows.committed() == 1
    assert said == ["run.process_all_available", "run.await_termination"]


def test_stop_in_a_listener_ends_the_run(rows: Rows, spark: SparkSession) -> None:
    """And what comes of a run that has ended is said at once, however it is asked."""
    running: list[hf.Run] = []
    stopped: list[Exception | None] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802
        def onQueryIdle(self, event: Any) -> None: ...  # noqa: N802
        def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            if not running or stopped:
                return
            try:
                stopped.append(None)
                running[0].stop()
            except Exception as error:
                stopped.append(error)

    rows.add()
    job, counts = rows.job()
    counts.write("noop")
    listener = Listener()
    spark.streams.addListener(listener)
    try:
        run = job.start(**QUICK)
        running.append(run)
        rows.add()  # something to progress with
        assert run.await_termination(300)
        until(lambda: run.status().phase == "stopped", 300, "stopped")
        run.stop()
    finally:
        spark.streams.removeListener(listener)
    assert stopped == [None]
    with pytest.raises(hf.ContainerError, match="The run is stopped"):
        run.await_settled(100_000)  # longer than any test may take
    with pytest.raises(hf.ContainerError, match="The run is stopped"):
        run.kill(run.status().containers[0].name)
    with pytest.raises(hf.HoldfastError, match="stopped"):
        run.process_all_available()
    assert run.await_termination()


def test_what_was_killed_is_missed_before_the_run_counts_as_settled(rows: Rows) -> None:
    """Nobody else has noticed yet: by ``run.kill``, and by a signal that nobody told us of."""
    rows.add()
    job, counts = rows.job()
    counts.write("noop")
    with job.start(**(QUICK | {"containers": 2})) as run:
        run.process_all_available()
        assert run.await_settled(300)
        noticed = run._fleet._lost
        run._fleet._lost = lambda *told: (time.sleep(1), noticed(*told))  # type: ignore[func-returns-value]
        for kill in (lambda one: run.kill(one.name), lambda one: os.kill(one.pid, signal.SIGKILL)):
            *_, victim = [one for one in run.status().containers if one.alive]
            process = psutil.Process(victim.pid)
            kill(victim)
            psutil.wait_procs([process], 10)
            assert run.await_settled(300)
            assert [one.slices for one in run.status().containers if one.name == victim.name] == [0]
            assert sum(one.slices for one in run.status().containers if one.alive) == 2


def test_a_driver_that_was_replaced_hears_of_it_on_a_quiet_stream(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "LOOK_SECONDS", 0.2)
    rows.add()
    job, counts = rows.job()
    counts.write("noop")
    run = job.start(**QUICK)
    try:
        run.process_all_available()
        assert run.state(counts).get(1) == {"k": 1, "n": 1, "_epoch": 1}
        Ledger(Store(str(rows.base / "store")), SECTION).take_ownership("elsewhere", 1, "grpc://nowhere:1")
        with pytest.raises(hf.FencedError, match="no longer the master"):
            run.await_termination(300)
        with pytest.raises(hf.FencedError, match="no longer the master"):
            run.state(counts).get(1)
        with pytest.raises(hf.FencedError, match="no longer the master"):
            run.process_all_available()
        assert run.status().phase == "stopped"
    finally:
        run.stop()


def test_a_function_cannot_have_the_run(rows: Rows) -> None:
    rows.add()
    job, counts = rows.job()
    counts.write("noop")
    with job.start(**QUICK) as run:
        run.process_all_available()
        other = hf.Job("other", rows.spark, store=str(rows.base / "other"))
        frame = rows.spark.readStream.schema("k bigint").parquet(str(rows.base / "in"))

        def stops(key: int, rows: list[dict[str, Any]], context: Any) -> None:
            run.stop()

        with pytest.raises(hf.PlanError, match="it lives in the driver"):
            other.read(frame).key_by("k").process(stops, "k bigint")
        rows.add()
        run.process_all_available()
        assert run.state(counts).get(1) == {"k": 1, "n": 2, "_epoch": 2}


DRIVER = """
import atexit, sys, threading, time
from pathlib import Path

sys.path.insert(0, {here!r})
from driver import session

import holdfast as hf

base = Path({base!r})


def said(*words):
    print(*words, flush=True)


def start(part):
    for stream in (sys.stdout, sys.stderr):
        print("PART", file=stream, flush=True)
    spark = session({{"master": "local[2]"}})
    job = hf.Job("stopping", spark, store=str(base / part / "store"))
    rows = spark.readStream.schema("k bigint").option("maxFilesPerTrigger", 1).parquet(str(base / "in"))
    counts = job.read(rows).key_by("k").agg(n=hf.count())
    counts.write("parquet", str(base / part / "out"))
    run = job.start(containers=2, slices=4, trigger="1 second")
    run.process_all_available()
    return spark, counts, run


spark, counts, run = start("interrupt")
for wait in (run.await_termination, lambda: run.await_termination(100), run.process_all_available):
    said("READY")
    try:
        while True:
            wait()
    except KeyboardInterrupt:
        said("interrupted")
said("get", run.state(counts).get(1))
said("rows", run.state(counts).to_df().count())
run.kill(run.status().containers[0].name)
said("settled", run.await_settled(300))
said("alive", run.query.isActive)
run.stop()
said("phase", run.status().phase)

spark, counts, run = start("session")
spark.stop()
try:
    run.await_termination(300)
except hf.HoldfastError as error:
    said("waiting", type(error).__name__, error)
try:
    run.stop()
except hf.HoldfastError as error:
    said("stopping", type(error).__name__, error)
said("threads", [one.name for one in threading.enumerate() if one.name.startswith("holdfast")])
said("children", len(run._fleet.alive()))

start("raise")
atexit.register(time.sleep, 2)  # time enough for every thread of ours to find its pools closed
raise ValueError("of the program")
"""


def parts(text: str) -> list[str]:
    before, *found = re.split(r"^PART\n", text, flags=re.MULTILINE)
    assert "Traceback" not in before
    return found


@pytest.mark.drivers
def test_a_program_that_is_interrupted_then_loses_its_session_then_raises(tmp_path: Path, rows: Rows) -> None:
    """Ctrl-C as a terminal sends it: to containers, the nursery, Spark's JVM and its workers too.

    One program of three parts, so that one JVM has to be started for them.
    """
    rows.add()
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(here=str(Path(__file__).parent), base=str(tmp_path)))
    errors = tmp_path / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-u", str(script)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            out = ""
            for line in process.stdout or ():
                out += line
                if line.startswith("READY"):
                    time.sleep(0.5)  # it waits by then, or is about to
                    os.killpg(process.pid, signal.SIGINT)
            code = process.wait(300)
        finally:
            process.kill()
    whole = errors.read_text()
    assert code == 1, whole
    interrupted, session, raised = parts(out)
    errors_interrupted, errors_session, errors_raised = parts(whole)
    assert [line for line in interrupted.splitlines() if line] == [
        *(["READY", "interrupted"] * 3),
        "get {'k': 1, 'n': 1, '_epoch': 1}",
        "rows 10",
        "settled True",
        "alive True",
        "phase stopped",
    ]
    assert "Traceback" not in errors_interrupted

    told = "SparkError Spark's session was stopped while job 'stopping' ran in it."
    assert f"waiting {told}" in session
    assert f"stopping {told}" in session
    assert "Call run.stop() before spark.stop()." in session
    assert "threads []" in session
    assert "children 0" in session
    assert "py4j" not in out + whole
    assert "Traceback" not in errors_session

    assert not raised
    assert errors_raised.count("Traceback (most recent call last)") == 1, whole
    assert errors_raised.strip().endswith("ValueError: of the program"), whole
