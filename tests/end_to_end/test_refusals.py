"""What cannot be done rightly is not done at all: clear errors, nothing written."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.flight as flight
import pytest
from kit import NEVER, Drill, finish
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import holdfast as hf
from holdfast.launch import local as launcher
from holdfast.log.records import Fence
from holdfast.log.repair import checksums
from holdfast.wire.client import Address, Client
from holdfast.wire.codec import Sender
from holdfast.wire.messages import Undo
from holdfast.wire.questions import AskStatus, Describe, ScanTicket

pytestmark = pytest.mark.spark


def decided(store: Path) -> dict[str, bytes]:
    """Everything in a store that says what happened, and what became of it."""
    folders = ("prepare", "commit", "checkpoint", "log")
    return {
        str(path): path.read_bytes()
        for folder in folders
        for path in sorted((store / "main" / folder).glob("*"))
        if not path.name.startswith(".")
    }


def flip(path: Path, at: int = 200) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@pytest.fixture
def drill(tmp_path: Path) -> Drill:
    return Drill(tmp_path, files=3)


Runner = Callable[..., None]


@pytest.fixture
def go(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Runner:
    def run(drill: Drill, during: Callable[[hf.Run], None] | None = None, **changes: object) -> None:
        drill.run_here(spark, monkeypatch, during, **changes)

    return run


def more_input(drill: Drill, files: int) -> None:
    """Further files, so that a restarted job has something to do."""
    other = Drill(drill.base / "more", files=drill.files + files, seed=drill.seed)
    for path in sorted((other.base / "input").glob("*.parquet"))[drill.files :]:
        shutil.copy2(path, drill.base / "input" / path.name)
    drill.files += files


def test_a_new_checkpoint_with_an_old_store(drill: Drill, go: Runner) -> None:
    """One that is gone is written again from what prepares carry; one of another query is not ours to go on with."""
    go(drill)
    checkpoint = drill.base / "store" / "main" / "spark"
    shutil.rmtree(checkpoint)
    drill.add_file()
    go(drill)
    assert "mended" in drill.kinds
    drill.check()
    before = decided(drill.base / "store")
    another = b'{"id":"11bfc103-d173-4412-a657-94a95bb599a1"}'
    (checkpoint / "metadata").write_bytes(another)
    (checkpoint / ".metadata.crc").write_bytes(checksums(another))
    drill.add_file()
    with pytest.raises(hf.StoreError, match="query") as caught:
        go(drill)
    assert "nothing was written" in caught.value.safe
    assert decided(drill.base / "store") == before


def test_another_job_or_graph(drill: Drill, go: Runner) -> None:
    go(drill)
    before = decided(drill.base / "store")
    with pytest.raises(hf.StoreError, match="belongs to job 'drill', not to 'other'"):
        go(drill, name="other")
    with pytest.raises(hf.StoreError, match=r"_by_n_agg.*nothing in the store"):
        go(drill, shape="two")
    with pytest.raises(hf.StoreError, match="slices: 16 in the store, 17 now"):
        go(drill, slices=17)
    assert decided(drill.base / "store") == before


def test_a_newer_format(drill: Drill, go: Runner) -> None:
    go(drill)
    file = drill.base / "store" / "job.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))
    with pytest.raises(hf.FormatError, match="99"):
        go(drill)


def test_a_corrupted_segment_that_was_the_only_copy(drill: Drill, go: Runner) -> None:
    go(drill, store_every=100)
    segment = sorted((drill.base / "store" / "main" / "log").glob("0000000001.*"))[0]  # named by its batch
    flip(segment)
    before = decided(drill.base / "store")
    more_input(drill, 1)
    with pytest.raises(hf.CorruptionError) as caught:
        go(drill, store_every=100)
    assert segment.name in caught.value.what
    assert "epoch 2" in caught.value.what
    assert '{"logOffset":1}' in caught.value.what
    after = decided(drill.base / "store")
    assert {name: data for name, data in after.items() if "/log/" not in name} == {
        name: data for name, data in before.items() if "/log/" not in name
    }


def test_a_corrupted_segment_while_live_state_exists(drill: Drill, go: Runner) -> None:
    """Scrubbing finds it and checkpoints at once, so that a later loss needs the segment no more."""
    more_input(drill, 2)

    def during(run: hf.Run) -> None:
        shell = run._shell
        assert shell.wait_for(lambda: shell.machine.committed >= 2, NEVER)
        assert run.scrub() > 0
        segment = sorted((drill.base / "store" / "main" / "log").glob("0000000000.*"))[0]  # named by its batch
        flip(segment)
        with pytest.raises(hf.CorruptionError, match=segment.name):
            run.scrub()
        assert shell.wait_for(lambda: any(event.kind == "checkpoint" for event in shell.history.events), NEVER)
        run.kill(run.status().containers[0].name)

    go(drill, during, store_every=100, backups=0)
    kinds = [kind for kind, _ in drill.report["events"]]
    assert "corrupt" in kinds
    assert "lost" in kinds
    drill.check()


def test_a_corrupted_checkpoint_falls_back_to_the_one_before(drill: Drill, go: Runner) -> None:
    go(drill, store_every=1)
    packs = sorted((drill.base / "store" / "main" / "checkpoint").glob("*.pack"))
    complete = sorted((drill.base / "store" / "main" / "checkpoint").glob("*.complete"))  # one may be half written
    newest = complete[-1].name.split(".")[0]
    for pack in packs:
        if pack.name.startswith(newest):
            flip(pack)
    more_input(drill, 1)
    go(drill, store_every=1)
    assert "corrupt" in [kind for kind, _ in drill.report["events"]]
    drill.check()


def test_an_overflow_takes_the_epoch_back(tmp_path: Path, spark: SparkSession) -> None:
    job = hf.Job("overflow", spark, store=str(tmp_path / "store"))
    (tmp_path / "in").mkdir()
    rows = spark.readStream.schema("v bigint").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    total = job.read(rows).key_by(F.lit(1).alias("k")).agg(total=hf.sum("v"))
    total.write("parquet", str(tmp_path / "out"))
    (tmp_path / "in" / "1.json").write_text('{"v": 9223372036854775807}\n')
    with job.start(containers=1, slices=2) as run:
        run.process_all_available()
        assert run.state(total).get(1) == {"k": 1, "total": 9223372036854775807, "_epoch": 1}
        (tmp_path / "in" / "2.json").write_text('{"v": 1}\n')
        with pytest.raises(hf.FunctionError, match="overflow"):
            run.process_all_available()
        assert run.state(total).get(1) == {"k": 1, "total": 9223372036854775807, "_epoch": 1}
    assert spark.read.parquet(str(tmp_path / "out")).count() == 1
    # Nothing is changed by starting it again. With null for what does not fit, that epoch is finished, and the true sum
    # comes back as soon as it fits.
    with pytest.raises(hf.FunctionError, match="overflow"), job.start(containers=1, slices=2) as run:
        run.process_all_available()
    (tmp_path / "in" / "3.json").write_text('{"v": -3}\n')
    with job.start(containers=1, slices=2, on_overflow="null") as run:
        run.process_all_available()
        said = [event.text for event in run.status().events if event.kind == "changed"]
        assert said == [
            "stage 'source_by_k_agg': results that are too large for their type: null from now on",
            "epoch 2, which had failed, is finished by the job as it is now",
        ]
        assert run.state(total).get(1) == {"k": 1, "total": 9223372036854775805, "_epoch": 3}
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("_epoch").collect()
    assert [row.total for row in found] == [9223372036854775807, None, 9223372036854775805]


@pytest.mark.own_nursery
def test_a_container_that_cannot_start(
    tmp_path: Path, drill: Drill, go: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named holdfast' >&2\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setattr(launcher.sys, "executable", str(broken))
    with pytest.raises(hf.ContainerError, match=r"(?s)exit code 7.*no module named holdfast"):
        go(drill)


def test_a_full_disk(drill: Drill, go: Runner) -> None:
    small = drill.base / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system of its own")
    try:
        with pytest.raises(hf.FullDiskError) as caught:
            go(drill, store=str(small / "store"), preaggregate=False)
        assert str(small) in caught.value.what
        assert caught.value.todo
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.fixture
def running(tmp_path: Path, spark: SparkSession) -> Iterator[tuple[hf.Run, hf.StageStream]]:
    job = hf.Job("running", spark, store=tmp_path / "store")
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    counts = job.read(rows).key_by((F.col("value") % 10).alias("digit")).agg(n=hf.count())
    counts.write("noop")
    with job.start(containers=2, slices=4) as run:
        run.process_all_available()
        yield run, counts


def test_a_stranger_gets_nothing(running: tuple[hf.Run, hf.StageStream], tmp_path: Path) -> None:
    run, _ = running
    address = run._fleet.address(run.status().containers[0].name)
    with Client(address, "guess") as client, pytest.raises(hf.TokenError, match="no valid token"):
        client.call(AskStatus())
    with Client(address, "guess") as client, pytest.raises(hf.TokenError):
        list(client.scan(ScanTicket("source_by_digit_agg", 1, "read", (0,))))
    with flight.FlightClient(address.location) as bare, pytest.raises(flight.FlightUnauthenticatedError):
        list(bare.do_action(flight.Action("ping", b"")))
    wrong = Address("somebody-else", address.location)
    with Client(wrong, run._jobs.token) as client, pytest.raises(hf.TokenError, match="listens on this port now"):
        client.call(AskStatus())
    with Client(run._live.desk.address, "guess") as client, pytest.raises(hf.TokenError):
        client.call(Describe("source_by_digit_agg"))
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert not any(run._jobs.token.encode() in path.read_bytes() for path in files)
    command = Path(f"/proc/{run.status().containers[0].pid}/cmdline").read_bytes()
    assert run._jobs.token.encode() not in command


def test_an_old_master_is_refused(running: tuple[hf.Run, hf.StageStream]) -> None:
    run, _ = running
    name = run.status().containers[0].name
    old = Sender(run._file.job_id, run._shell.incarnation - 1)
    with Client(run._fleet.address(name), run._jobs.token) as client, pytest.raises(hf.FencedError):
        client.call(Undo(name, Fence(old.incarnation, 1, 1), frozenset({0})), sender=old)


@pytest.mark.drivers
@pytest.mark.long
def test_two_drivers_on_one_store(tmp_path: Path) -> None:
    """The second takes the job over; the first stops by itself and writes nothing more."""
    drill = Drill(tmp_path, files=4, config={"slow": str(tmp_path / "faults")})
    drill.plant("dawdle")
    first = drill.start()
    try:
        while drill.planted:  # until a task of the first one falls asleep
            assert first.poll() is None, first.stderr.read() if first.stderr else ""
            time.sleep(0.1)
        second = drill.run()
        assert second.code == 0, second.error
        drill.check()
        before = decided(tmp_path / "store")
    finally:
        (tmp_path / "faults" / "wake").touch()
        ended = finish(first)
    assert ended.code == 3, ended.error[-3000:]
    assert "FencedError" in ended.error
    assert "incarnation 2 has taken over" in ended.error
    assert {name for name in decided(tmp_path / "store") if "/log/" not in name} <= set(before)
    drill.check_sinks()


def test_refused_before_anything_starts(tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(hf.PlanError, match="empty string, or no path, as its store"):
        hf.Job("plan", spark, store="")
    job = hf.Job("plan", spark, store=str(tmp_path / "store"))
    frame = spark.readStream.format("rate").load()
    rows = job.read(frame)
    with pytest.raises(hf.PlanError, match="columns there are: timestamp, value"):
        rows.where("colour = 1")
    with pytest.raises(hf.PlanError, match="key of stage"):
        rows.key_by("colour").agg(n=hf.count())
    with pytest.raises(hf.PlanError, match="cannot be a key"):
        rows.with_column("list", F.array("value")).key_by("list").agg(n=hf.count())
    with pytest.raises(hf.PlanError, match="sum"):
        rows.with_column("text", F.lit("a")).key_by("value").agg(n=hf.sum("text"))
    with pytest.raises(hf.PlanError, match="already keeps state in Spark"):
        job.read(frame.groupBy("value").count(), name="counted")
    with pytest.raises(hf.PlanError, match="not a stream"):
        job.read(spark.range(3), name="fixed")
    counts = rows.key_by("value").agg(n=hf.count(), top=hf.max("timestamp"))
    with pytest.raises(hf.PlanError, match=r"(?s)max.*updating|updating.*max"):
        counts.key_by("n").agg(latest=hf.max("top"))
    with pytest.raises(hf.PlanError, match="append"):
        counts.write("parquet", str(tmp_path / "out"), mode="append")
    for trigger in ({"realTime": "5 minutes"}, {"continuous": "1 second"}):
        with pytest.raises(hf.PlanError, match=next(iter(trigger))):
            job.start(trigger=trigger)
    counts.write("nonsense")
    with pytest.raises(hf.PlanError, match="nonsense"):
        job.start()
    assert not (tmp_path / "store" / "owner").exists()


def test_a_sink_folder_of_another_store(drill: Drill, go: Runner) -> None:
    """Spark's file sink skips epochs it believes to have: with another store's folder it would skip ours."""
    go(drill)
    with pytest.raises(hf.StoreError, match=r"which belongs to the sink 'parquet:.*' of another job: 'drill'"):
        go(drill, store=str(drill.base / "other"))
    drill.check_sinks()
    shutil.rmtree(drill.base / "out" / "json")
    with pytest.raises(hf.StoreError, match="where 0 epochs of it are, but this store knows of 3"):
        go(drill)


def test_the_same_job_twice_in_one_session(running: tuple[hf.Run, hf.StageStream]) -> None:
    run, counts = running
    with pytest.raises(hf.StoreError, match="runs in this session already"):
        run.job.start()
    assert run.state(counts).epoch == 0
    deadline = time.monotonic() + NEVER
    while run.state(counts).to_arrow().num_rows == 0:  # a rate source begins with nothing
        assert time.monotonic() < deadline, "the first run does not go on"
        time.sleep(0.1)
