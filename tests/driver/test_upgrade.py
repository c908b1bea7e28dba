"""A store whose log was written by one graph, opened with another: state, crashes in between, and what may be replayed.

No Spark: the log is written by hand, and slices are read where containers hold them.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from holdfast.container.job import HostedJob
from holdfast.container.staging import Staging
from holdfast.container.thread_table import ThreadTable
from holdfast.driver import upgrade as upgrading
from holdfast.driver.upgrade import Upgrade
from holdfast.errors import CorruptionError, FencedError, FunctionError, StoreError
from holdfast.log.blocks import Block
from holdfast.log.janitor import Janitor
from holdfast.log.ledger import Ledger
from holdfast.log.pack import PackWriter, pack_name
from holdfast.log.past import Past
from holdfast.log.records import FEED, Batch, Commit, Fence, GraphFile, JobFile, Manifest, Prepare, Range, SegmentRef
from holdfast.log.segment import SegmentWriter, segment_name
from holdfast.log.store import Store
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.lookup import LookupSpec
from holdfast.operators.process import ProcessSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.operators.window import WindowSpec
from holdfast.plan.changes import compare
from holdfast.plan.fingerprint import Fingerprint
from holdfast.state.typed import StateSpec

KILLED = [
    "mid-change",
    "before-graph",
    *(pytest.param(one, marks=pytest.mark.heavy) for one in ("after-pack", "after-graph")),
]

SLICES = 4
KEYS = (Column("k", "bigint"),)
N = AggregateSpec("n", "count", None, None)
TOTAL = AggregateSpec("total", "sum", "v0", "bigint")
HIGH = AggregateSpec("high", "max", "v1", "string")
SEEN = AggregateSpec("seen", "count_distinct", "v1", "string")
LOW = AggregateSpec("low", "count_distinct", "v1", "string", where="v3")  # with a number below 50; with SEEN's values
KINDS = AggregateSpec("kinds", "count_distinct", "v0", "bigint")
ROUGH = AggregateSpec("rough", "approx_distinct", "v0", "bigint")
VALUES = (Column("v", "bigint"), Column("g", "string"), Column("ts", "timestamp"))
SECOND = 1_000_000
Row = tuple[int, int, str, int]  # key, number, text, time


def stage(name: str, spec: Any, number: int = 0) -> StagePlan:
    return StagePlan(name, 1, (InputPlan(1, number),), spec)


def counts(*aggregates: AggregateSpec) -> StagePlan:
    return stage("counts", StageSpec(KEYS, aggregates))


def fresh_rows(epoch: int, count: int = 200) -> list[Row]:
    draw = random.Random(epoch)
    return [
        (draw.randrange(40), draw.randrange(100), f"g{draw.randrange(9)}", epoch * SECOND + draw.randrange(SECOND))
        for _ in range(count)
    ]


class Shop:
    """One job's store, and a hand that does what intake and master would."""

    timed: tuple[str, ...] = ("windows", "slides")
    """Stages with a watermark."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger(Store(str(path)), "main")
        self.rows: dict[int, list[Row]] = {}

    def tidy(self) -> None:
        Janitor(self.ledger.store, "main", 9).round(100)

    def reopened(self) -> Shop:
        shop = Shop(self.path)
        shop.rows = self.rows
        return shop

    @property
    def committed(self) -> int:
        commit = self.ledger.last_committed()
        return commit.fence.epoch if commit else 0

    def epochs(self, count: int, inputs: int = 1) -> None:
        for _ in range(count):
            epoch = self.committed + 1
            self.prepare(epoch, fresh_rows(epoch), inputs)
            self.ledger.put_block(Block(Fence(1, epoch, 1), Batch("q", epoch - 1, "")))
            self.ledger.put_commit(Commit(Fence(1, epoch, 1), {FEED: Range(epoch, epoch)}))

    def prepare(self, epoch: int, rows: list[Row], inputs: int = 1) -> Prepare:
        self.rows[epoch] = rows
        keys, numbers, texts, times = zip(*rows, strict=True)
        hashed = (np.asarray(keys, np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(1)).astype(np.int64)
        batch = pa.record_batch(
            {
                "_h": pa.array(hashed),
                "k0": pa.array(keys, pa.int64()),
                "v0": pa.array(numbers, pa.int64()),
                "v1": pa.array(texts),
                "v2": pa.array(times, pa.timestamp("us", tz="UTC")),
                "v3": pa.array([True if number < 50 else None for number in numbers]),
            }
        )
        writer = SegmentWriter(SLICES)
        for number in range(inputs):
            writer.append(number, batch, hashed % SLICES)
        fence = Fence(1, epoch, 1)
        name = segment_name(fence, 1, 0, epoch)
        nbytes = self.ledger.section.write(name, writer.parts())
        ref = SegmentRef(name, writer.rows, nbytes, writer.checksum, 0, epoch)
        marks = dict.fromkeys(self.timed, epoch * SECOND)
        before = {name: mark - SECOND for name, mark in marks.items()} if epoch > 1 else {}
        return self.ledger.put_prepare(
            Prepare(fence, 1, {FEED: Range(epoch, epoch)}, (ref,), 0, watermark_before=before, watermark_after=marks)
        )

    @contextmanager
    def hosted(self, plans: Sequence[StagePlan], checkpoint: int | None = None) -> Iterator[HostedJob]:
        """All slices of a job with that graph, at the last committed epoch, as a container would bring them back."""
        ledger = Ledger(self.ledger.store, "main")
        manifests = ledger.manifests()
        manifest = manifests[-1] if manifests and checkpoint is None else None
        threads = ThreadTable(2)
        job = HostedJob("j", plans, SLICES, ledger, threads, Staging(0))
        try:
            job.restore(range(SLICES), self.committed, manifest.epoch if manifest else 0)
            yield job
        finally:
            job.close()
            threads.close()

    def read(self, plans: Sequence[StagePlan], name: str) -> list[dict[str, Any]]:
        with self.hosted(plans) as job:
            found = [batch for _, batch in job.reading.outputs(name, range(SLICES), self.committed, "read")]
        return sorted(pa.Table.from_batches(found).to_pylist(), key=repr)

    def checkpoint(self, plans: Sequence[StagePlan]) -> None:
        fence = Fence(1, self.committed, 1)
        name = pack_name(fence, "c0")
        with self.hosted(plans) as job:
            PackWriter().write(self.ledger.section, name, job.reading.packed(self.committed, range(SLICES)))
        self.ledger.put_manifest(Manifest(fence.epoch, fence, (name,), (0,) * SLICES, "me"))

    def change(self, stored: Sequence[StagePlan], asked: Sequence[StagePlan]) -> Upgrade:
        """The job's owner opens the store with another graph."""
        found = compare(stored, asked)
        assert not found.refusals, found.refusals
        assert found.converts
        former = self.ledger.graph()
        graph = former.graph if former else {"sources": []}
        upgrade = Upgrade(
            self.ledger, JobFile("j", "job", graph, SLICES, 0), stored, asked, Fingerprint.from_dict(graph), found
        )
        upgrade.perform(self.ledger.take_ownership("h", 1, "").incarnation)
        return upgrade


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "store")


def oracle(rows: Mapping[int, list[Row]], since: Mapping[str, int]) -> list[dict[str, Any]]:
    """Every aggregate over the rows of the epochs after the one it came in."""
    found = []
    for key in sorted({row[0] for of in rows.values() for row in of}):
        said: dict[str, Any] = {"k": key}
        for name, epoch in since.items():
            mine = [row for at, of in rows.items() if at > epoch for row in of if row[0] == key]
            texts = [row[2] for row in mine]
            said[name] = {
                "n": len(mine),
                "total": sum(row[1] for row in mine) if mine else None,
                "high": max(texts, default=None),
                "seen": len(set(texts)),
                "low": len({row[2] for row in mine if row[1] < 50}),
                "kinds": len({row[1] for row in mine}),
            }[name]
        found.append(said)
    return sorted(found, key=repr)


OLD = counts(N, TOTAL)
NEW = counts(HIGH, TOTAL, SEEN)
"""One aggregate is gone, one stays but in another place, two are new, one of them with a table of its own."""


@pytest.mark.parametrize("checkpoint", ["none", "behind", "right there"])
def test_what_stays_stays_and_what_is_new_starts_at_nothing(shop: Shop, checkpoint: str) -> None:
    shop.epochs(2)
    if checkpoint != "none":
        shop.checkpoint([OLD])
    if checkpoint == "behind":
        shop.epochs(2)
    changed = shop.committed
    upgrade = shop.change([OLD], [NEW])
    assert len(upgrade.changes) == 3
    shop = shop.reopened()
    assert shop.read([NEW], "counts") == oracle(shop.rows, {"high": changed, "total": 0, "seen": changed})
    shop.epochs(2)
    since = {"high": changed, "total": 0, "seen": changed}
    assert shop.read([NEW], "counts") == oracle(shop.rows, since)
    shop.checkpoint([NEW])
    shop.epochs(1)
    assert shop.read([NEW], "counts") == oracle(shop.rows, since)

    # And once more, back to what it was: what was dropped is gone.
    again = shop.committed
    shop.change([NEW], [OLD])
    shop = shop.reopened()
    shop.epochs(1)
    assert shop.read([OLD], "counts") == oracle(shop.rows, {"n": again, "total": 0})


POOL = (N, TOTAL, HIGH, SEEN, LOW, KINDS)
CHOSEN = st.lists(st.sampled_from(POOL), min_size=1, unique=True)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs=st.lists(CHOSEN, min_size=2, max_size=4), draw=st.randoms(use_true_random=False))
def test_any_sequence_of_graphs(tmp_path_factory: pytest.TempPathFactory, graphs: list[Any], draw: Any) -> None:
    shop = Shop(tmp_path_factory.mktemp("any") / "store")
    since: dict[str, int] = {}
    for at, aggregates in enumerate(graphs):
        asked = counts(*aggregates)
        if at and graphs[at - 1] != aggregates:
            shop.change([counts(*graphs[at - 1])], [asked])
            shop = shop.reopened()
        since = {one.name: since.get(one.name, shop.committed) for one in aggregates}
        for _ in range(draw.randrange(3)):
            shop.epochs(1)
            if draw.random() < 0.4:
                shop.checkpoint([asked])
        if shop.committed:
            assert shop.read([asked], "counts") == oracle(shop.rows, since)


def test_a_large_state_is_converted_some_slices_at_a_time(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upgrading, "BYTES_AT_ONCE", 1)
    shop.epochs(2)
    with caplog.at_level("INFO", "holdfast"):
        shop.change([OLD], [NEW])
    assert [line for line in caplog.messages if "4 slices are converted" in line][-1].startswith(
        "the graph changes: 4 of 4"
    )
    assert sum("slices are converted" in line for line in caplog.messages) == SLICES
    assert shop.read([NEW], "counts") == oracle(shop.rows, {"high": 2, "total": 0, "seen": 2})


def test_slots_and_their_order_are_kept(shop: Shop) -> None:
    """Outputs come in slot order, which is part of the state."""
    shop.epochs(3)
    with shop.hosted([OLD]) as job:
        before = [batch.column("k") for _, batch in job.reading.outputs("counts", range(SLICES), 3, "read")]
    shop.change([OLD], [NEW])
    with shop.hosted([NEW]) as job:
        after = [batch.column("k") for _, batch in job.reading.outputs("counts", range(SLICES), 3, "read")]
    assert before == after


def test_sketches_and_decimals_start_at_nothing(shop: Shop) -> None:
    """Columns that are wider than a number."""
    money = AggregateSpec("money", "first", "v0", "decimal(10,2)")
    shop.epochs(1)
    shop.change([OLD], [counts(N, ROUGH, money)])
    rows = shop.read([counts(N, ROUGH, money)], "counts")
    assert {(row["rough"], row["money"]) for row in rows} == {(0, None)}
    assert sum(row["n"] for row in rows) == 200


def test_stages_come_and_go_and_may_stand_elsewhere_in_the_log(shop: Shop) -> None:
    gone, first = stage("gone", StageSpec(KEYS, (TOTAL,)), 0), stage("counts", StageSpec(KEYS, (N,)), 1)
    shop.epochs(3, inputs=2)
    new = [stage("counts", StageSpec(KEYS, (N,)), 0), stage("young", StageSpec(KEYS, (N, TOTAL)), 1)]
    shop.change([gone, first], new)
    assert shop.read(new, "young") == []
    assert shop.read(new, "counts") == oracle(shop.rows, {"n": 0})
    shop = shop.reopened()
    shop.epochs(1, inputs=2)
    assert shop.read(new, "counts") == oracle(shop.rows, {"n": 0})
    assert shop.read(new, "young") == oracle({4: shop.rows[4]}, {"n": 3, "total": 3})


def test_a_stage_that_looks_into_one_that_goes(shop: Shop) -> None:
    """What goes is still needed to replay what stays."""
    found = (Column("n", "bigint"), Column("total", "bigint"))
    looking = StagePlan("looking", 2, (InputPlan(1, 0),), LookupSpec(KEYS, VALUES, "counts", found))
    other = stage("young", StageSpec(KEYS, (N,)))
    again = replace(looking, operator=LookupSpec(KEYS, VALUES, "young", (Column("n", "bigint"),)))
    for epoch in (1, 2):
        shop.epochs(1)
        shop.ledger.put_prepare(Prepare(Fence(1, epoch, 1), 2, {FEED: Range(epoch, epoch)}, (), 0))
    shop.change([OLD, looking], [other, again])
    assert shop.read([other, again], "young") == []


def test_a_graph_that_never_counted_is_none_that_the_next_one_follows(shop: Shop) -> None:
    """Its driver died before a prepare named it: nothing of it has happened, and nothing of it is told."""
    stable = stage("stable", StageSpec(KEYS, (TOTAL,)))
    stored = [plan.to_dict() for plan in (OLD, stable)]
    shop.ledger.open_or_create_job(JobFile("j", "job", {"sources": []}, SLICES, 0, stages=stored))
    shop.epochs(2)
    told = ["job 'stable' was removed"]
    shop.ledger.put_graph(GraphFile(1, 0, 1, {}, [OLD.to_dict()], told, [], [], 0, live=True, former=0))
    shop = shop.reopened()
    shop.change([OLD, stable], [stable])
    graphs = Ledger(shop.ledger.store, "main").graphs()
    assert (graphs.newest, graphs.before(2)) == (2, [2, 0])
    assert Past.of(graphs).changes == ()
    shop.ledger.section.delete(graphs.later[-1].packs)  # the log stands in for it
    assert shop.read([stable], "stable") == oracle(shop.rows, {"total": 0})


def test_a_graph_without_any_stage_of_before(shop: Shop) -> None:
    shop.epochs(2)
    other = stage("other", StageSpec(KEYS, (N,)))
    shop.change([OLD], [other])
    assert shop.read([other], "other") == []


def sliding(*aggregates: AggregateSpec) -> StagePlan:
    return stage("slides", WindowSpec(KEYS, aggregates, VALUES, 4 * SECOND, SECOND, "event", "v2"))


def tumbling(*aggregates: AggregateSpec) -> StagePlan:
    return stage("windows", WindowSpec(KEYS, aggregates, VALUES, 4 * SECOND, 4 * SECOND, "event", "v2"))


@pytest.mark.parametrize("window", [sliding, tumbling])
def test_windows_that_are_open_get_the_new_aggregate_for_the_rows_to_come(shop: Shop, window: Any) -> None:
    old, new = window(N, TOTAL), window(HIGH, TOTAL, replace(TOTAL, name="again"))
    name = old.name
    shop.epochs(5)
    shop.change([old], [new])
    shop = shop.reopened()
    closed = []
    with shop.hosted([new]) as job:
        for epoch in range(6, 16):
            job.apply(shop.prepare(epoch, fresh_rows(epoch)), range(SLICES))
            for _, batch in job.reading.outputs(name, range(SLICES), epoch, "changed"):
                closed += batch.to_pylist()
            job.commit(epoch)
    assert len(closed) >= 80
    for row in closed:
        start, end = (int(row[edge].timestamp()) * SECOND for edge in ("window_start", "window_end"))
        mine = {
            epoch: [one for one in rows if one[0] == row["k"] and start <= one[3] < end]
            for epoch, rows in shop.rows.items()
        }
        every, young = ([one for at, of in mine.items() if at > since for one in of] for since in (0, 5))
        assert row["total"] == sum(one[1] for one in every)
        assert row["again"] == (sum(one[1] for one in young) if young else None)
        assert row["high"] == max((one[2] for one in young), default=None)


class Counting:
    def rows(self, key: int, rows: Any, context: Any) -> None:
        for row in rows:
            context.state.count = (context.state.count or 0) + 1
            if row["v"] < 10:
                context.state.small = (context.state.small or 0) + 1


class Doubling:
    def rows(self, key: int, rows: Any, context: Any) -> None:
        for _ in rows:
            context.state.twice = (context.state.twice or 0) + 2
        if any(row["v"] < 10 for row in rows):
            context.state.small = (context.state.small or 0) + 1000


def process(given: Any, *states: str) -> StagePlan:
    held = tuple(StateSpec(name, "value", "bigint") for name in states)
    return stage("own", ProcessSpec(KEYS, VALUES, None, cloudpickle.dumps(given), held, (("", KEYS),)))


def test_the_old_function_finishes_what_the_log_has_for_it(shop: Shop) -> None:
    """And a key whose last state went with the change is forgotten."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        old, new = process(Counting, "count", "small"), process(Doubling, "small", "twice")
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    shop.epochs(3)
    shop.change([old], [new])
    small: dict[int, int] = {}
    for key, number, _, _ in (row for of in shop.rows.values() for row in of):
        if number < 10:
            small[key] = small.get(key, 0) + 1
    truth = [{"k": key, "small": count, "twice": None} for key, count in small.items()]
    assert len(truth) < len({row[0] for of in shop.rows.values() for row in of})
    assert shop.read([new], "own") == sorted(truth, key=repr)
    shop = shop.reopened()
    shop.epochs(1)
    rows = {row["k"]: row for row in shop.read([new], "own")}
    for key in {row[0] for row in shop.rows[4]}:
        came = [row for row in shop.rows[4] if row[0] == key]
        assert rows[key]["twice"] == 2 * len(came)
        more = 1000 if any(row[1] < 10 for row in came) else 0
        assert rows[key]["small"] == (small.get(key, 0) + more or None)


def test_a_function_that_cannot_be_loaded_any_more(shop: Shop) -> None:
    old = process(Counting, "count", "small")
    lost = replace(
        old,
        operator=replace(
            old.operator,
            function=old.operator.function.replace(b"Counting", b"Vanished"),  # type: ignore[attr-defined,call-arg]
        ),
    )
    shop.epochs(1)
    with pytest.raises(StoreError, match=r"'own' as it was cannot be loaded any more: AttributeError"):
        shop.change([lost], [process(Doubling, "small", "twice")])
    assert shop.reopened().ledger.graph() is None
    shop.checkpoint([old])  # then nothing has to be replayed, and nobody needs it
    shop.change([lost], [process(Doubling, "small", "twice")])


def test_a_checkpoint_that_fits_is_taken_as_it_is(shop: Shop) -> None:
    old, new = stage("counts", StageSpec(KEYS, (N,)), 0), stage("counts", StageSpec(KEYS, (N,)), 1)
    shop.epochs(2)
    shop.checkpoint([old])
    before = sorted(shop.ledger.section.list("checkpoint"))
    shop.change([old], [new])
    assert sorted(shop.ledger.section.list("checkpoint")) == before
    assert shop.read([new], "counts") == oracle(shop.rows, {"n": 0})


def test_sources_that_others_read_cost_no_conversion(shop: Shop) -> None:
    """A stateless sink more, say: state, log and checkpoints stay as they are; only Spark's folder is another."""
    section = shop.ledger.section
    section.write("spark/metadata", [b"{}"])
    for epoch in range(1, 5):
        section.write(f"spark/offsets/{epoch - 1}", [f"v1\n{{}}\n{epoch}".encode()])
    shop.epochs(2)
    shop.checkpoint([NEW])
    shop.epochs(1)
    file = JobFile("j", "job", {"sources": ["a"]}, SLICES, 0, stages=[NEW.to_dict()])
    shop.ledger.open_or_create_job(file)
    for places in (["a", "a"], ["a", "a", "a"]):
        upgrade = Upgrade(shop.ledger, file, [NEW], [NEW], Fingerprint(tuple(places)), compare([NEW], [NEW]))
        graph = upgrade.perform(shop.ledger.take_ownership("h", 1, "").incarnation)
        assert (graph.epoch, graph.packs) == (0, [])
        shop = shop.reopened()
        assert section.read(f"{shop.ledger.spark}/offsets/{shop.committed - 1}").decode().splitlines()[2:] == [
            f"{shop.committed}"
        ] * len(places)
        assert [one.epoch for one in shop.ledger.manifests()] == [2]
        assert shop.read([NEW], "counts") == oracle(shop.rows, {"high": 0, "total": 0, "seen": 0})
    shop.change([NEW], [OLD])
    assert shop.ledger.spark == graph.spark
    shop = shop.reopened()
    shop.epochs(1)
    assert shop.read([OLD], "counts") == oracle(shop.rows, {"n": 3, "total": 0})


def test_before_the_first_epoch_there_is_nothing_to_convert(shop: Shop) -> None:
    shop.change([OLD], [NEW])
    shop = shop.reopened()
    shop.epochs(1)
    assert shop.read([NEW], "counts") == oracle(shop.rows, {"high": 0, "total": 0, "seen": 0})


# --- an epoch that failed -------------------------------------------------------------------------------------------


class Torn:
    def rows(self, key: int, rows: Any, context: Any) -> Any:
        context.state.count = (context.state.count or 0) + len(rows)
        if any(row["g"] == "torn" for row in rows):
            raise ValueError("a torn row")


class Mended:
    def rows(self, key: int, rows: Any, context: Any) -> Any:
        whole = [row for row in rows if row["g"] != "torn"]
        context.state.count = (context.state.count or 0) + 100 * len(whole)
        context.state.torn = (context.state.torn or 0) + len(rows) - len(whole)


def torn_shop(path: Path) -> tuple[Shop, StagePlan, StagePlan]:
    """Two epochs, and a third that raises: what the driver's shell leaves behind."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        old, new = process(Torn, "count"), process(Mended, "count", "torn")
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    shop = Shop(path)
    if shop.committed:
        return shop, old, new
    shop.epochs(2)
    prepare = shop.prepare(3, [*fresh_rows(3), (1, 5, "torn", 3 * SECOND)])
    with shop.hosted([old]) as job:
        with pytest.raises(FunctionError, match="a torn row"):
            job.apply(prepare, range(SLICES))
        job.undo(3, range(SLICES))
    shop.ledger.mark_failed(Fence(1, 3, 0), "a torn row")
    return shop, old, new


def mended_truth(shop: Shop) -> list[dict[str, Any]]:
    """Two epochs of the old function, the third and all after it of the new one."""
    keys = {row[0] for of in shop.rows.values() for row in of}
    found = []
    for key in keys:
        old, new = ([row for at, of in shop.rows.items() if (at > 2) == late for row in of] for late in (False, True))
        count = sum(row[0] == key for row in old) + 100 * sum(row[0] == key and row[2] != "torn" for row in new)
        young = [row for row in new if row[0] == key]
        torn = sum(row[2] == "torn" for row in young) if young else None
        found.append({"k": key, "count": count, "torn": torn})
    return sorted(found, key=repr)


def finish(shop: Shop, plan: StagePlan) -> None:
    """What the driver does that opens the store after the change: the epoch in flight, and one more."""
    prepare = shop.ledger.get_prepare(3, 1)
    assert prepare is not None
    shop.ledger.refuse_former_graph(prepare)
    with shop.hosted([plan]) as job:
        job.apply(prepare, range(SLICES))
    shop.ledger.mark_applied(Fence(2, 3, 0))
    shop.ledger.put_commit(Commit(Fence(2, 3, 1), {FEED: Range(3, 3)}))
    shop.epochs(1)


def test_an_epoch_that_failed_is_finished_by_the_mended_function(shop: Shop) -> None:
    shop, old, new = torn_shop(shop.path)
    upgrade = shop.change([old], [new])
    assert upgrade.changes[-1] == "epoch 3, which had failed, is finished by the job as it is now"
    shop = shop.reopened()
    finish(shop, new)
    assert shop.read([new], "own") == mended_truth(shop)
    shop.checkpoint([new])
    shop.epochs(1)
    assert shop.read([new], "own") == mended_truth(shop)


def test_a_function_that_is_not_mended_yet_is_mended_again(shop: Shop) -> None:
    shop, old, new = torn_shop(shop.path)
    still = replace(old, operator=replace(old.operator, states=new.operator.states))  # type: ignore[attr-defined,call-arg]
    shop.change([old], [still])
    with pytest.raises(StoreError, match="epoch 3 was begun before"):
        shop.change([still], [new])  # nobody has seen it fail with this one
    shop.ledger.mark_failed(Fence(2, 3, 0), "a torn row")
    shop.change([still], [new])
    shop = shop.reopened()
    finish(shop, new)
    assert shop.read([new], "own") == mended_truth(shop)


def test_an_epoch_that_failed_once_and_was_applied_after_all_is_not_mended(shop: Shop) -> None:
    """Its sinks may have begun."""
    shop, old, new = torn_shop(shop.path)
    shop.ledger.mark_applied(Fence(2, 3, 0))
    with pytest.raises(StoreError, match="epoch 3 was begun before"):
        shop.change([old], [new])


def test_what_is_more_than_a_mended_function_waits_for_the_epoch(shop: Shop) -> None:
    shop, old, new = torn_shop(shop.path)
    more = stage("young", StageSpec(KEYS, (N,)))
    with pytest.raises(StoreError, match="It failed: a torn row") as caught:
        shop.change([old], [new, more])
    assert "nothing changed but the function that failed" in caught.value.todo
    assert shop.reopened().ledger.graph() is None


@pytest.mark.parametrize("place", KILLED)
def test_killed_while_an_epoch_is_mended(shop: Shop, place: str, tmp_path: Path) -> None:
    """Before the graph's file is there the old function still fails and the change is made again; after it the mended
    one finishes the epoch, whoever starts."""
    shop, old, new = torn_shop(shop.path)
    _kill(shop.path, place, 2, tmp_path, "mend")
    shop = shop.reopened()
    if place != "after-graph":
        assert shop.ledger.graph() is None
        assert shop.ledger.failed(3) is not None
        shop.change([old], [new])
        shop = shop.reopened()
    finish(shop, new)
    assert shop.read([new], "own") == mended_truth(shop)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_an_epoch_that_has_begun_is_finished_as_it_began(shop: Shop) -> None:
    shop.epochs(2)
    shop.prepare(3, fresh_rows(3))
    with pytest.raises(StoreError, match="epoch 3 was begun") as caught:
        shop.change([OLD], [NEW])
    assert "Start once more with the job as it was, so that epoch 3 is finished" in caught.value.todo
    assert shop.reopened().ledger.graph() is None


def test_the_log_below_is_never_replayed_with_the_new_graph(shop: Shop) -> None:
    shop.epochs(2)
    shop.checkpoint([OLD])
    shop.epochs(2)
    graph = shop.change([OLD], [NEW])
    assert graph.changes
    shop = shop.reopened()
    found = shop.ledger.graph()
    assert found is not None
    assert [one.epoch for one in shop.ledger.manifests()] == [4]  # the old graph's of epoch 2 does not count
    with (
        pytest.raises(StoreError, match="epoch 1 cannot be replayed: it is in terms of a graph that the job had"),
        shop.hosted([NEW], checkpoint=0),
    ):
        pass
    (pack,) = found.packs
    path = shop.path / "main" / pack
    data = bytearray(path.read_bytes())
    data[100] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="checkpoint that the job's graph begins with"), shop.hosted([NEW]):
        pass


def test_a_checkpoint_that_cannot_be_read_is_made_up_for_by_the_one_before(shop: Shop) -> None:
    for _ in range(2):
        shop.epochs(2)
        shop.checkpoint([OLD])
    newest = max((shop.path / "main" / "checkpoint").glob("*.pack"))
    newest.write_bytes(newest.read_bytes()[:-7])
    shop.change([OLD], [NEW])
    assert shop.read([NEW], "counts") == oracle(shop.rows, {"high": 4, "total": 0, "seen": 4})


def test_the_cut_goes_over_the_change_when_two_checkpoints_are_above_it(shop: Shop) -> None:
    shop.epochs(2)
    shop.checkpoint([OLD])
    shop.epochs(1)
    shop.checkpoint([OLD])
    shop.change([OLD], [NEW])
    shop = shop.reopened()
    shop.tidy()  # the new graph has but one checkpoint
    assert [one.epoch for one in shop.ledger.manifests()] == [3]
    shop.epochs(1)
    shop.checkpoint([NEW])
    shop.tidy()
    assert [one.epoch for one in shop.ledger.manifests()] == [3, 4]
    assert shop.read([NEW], "counts") == oracle(shop.rows, {"high": 3, "total": 0, "seen": 3})
    shop.epochs(1)
    shop.checkpoint([NEW])
    shop.epochs(1)
    shop.tidy()
    assert [one.epoch for one in shop.reopened().ledger.manifests()] == [4, 5]
    assert {name[:10] for name in shop.ledger.section.list("checkpoint")} == {"0000000004", "0000000005"}
    assert shop.read([NEW], "counts") == oracle(shop.rows, {"high": 3, "total": 0, "seen": 3})


def test_rivals(shop: Shop) -> None:
    """A driver that was replaced without knowing cannot make its old epoch one of the new graph."""
    shop.epochs(2)
    zombie = shop.reopened()
    assert zombie.ledger.graph() is None
    shop.change([OLD], [NEW])
    zombie.prepare(3, fresh_rows(3))
    with pytest.raises(StoreError, match=r"version 0 of the job's graph, but graph/0000000001\.json"):
        shop.ledger.put_prepare(Prepare(Fence(2, 3, 1), 1, {FEED: Range(3, 3)}, (), 0))

    other = Shop(shop.path.with_name("other"))
    other.epochs(1)
    found = compare([OLD], [NEW])
    late = Upgrade(other.ledger, JobFile("j", "job", {}, SLICES, 0), [OLD], [NEW], Fingerprint(()), found)
    mine = other.ledger.take_ownership("h", 1, "").incarnation
    other.reopened().ledger.take_ownership("h", 2, "")
    with pytest.raises(FencedError):
        late.perform(mine)
    assert other.reopened().ledger.graph() is None


# --- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", KILLED)
def test_killed_on_the_way_either_the_old_or_the_new_job_can_start(shop: Shop, place: str, tmp_path: Path) -> None:
    shop.epochs(2)
    shop.checkpoint([OLD])
    shop.epochs(1)
    _kill(shop.path, place, 3, tmp_path, "change")
    shop = shop.reopened()
    truth = oracle(shop.rows, {"high": 3, "total": 0, "seen": 3})
    if place == "after-graph":
        assert shop.read([NEW], "counts") == truth
        return
    assert shop.ledger.graph() is None
    assert shop.read([OLD], "counts") == oracle(shop.rows, {"n": 0, "total": 0})
    shop.change([OLD], [NEW])
    assert shop.reopened().read([NEW], "counts") == truth


def _kill(store: Path, place: str, epoch: int, base: Path, what: str) -> None:
    """A driver in a process of its own that changes the graph, and dies at a place."""
    faults = base / "faults"
    faults.mkdir()
    (faults / f"driver@{place}@{epoch}").touch()
    died = subprocess.run(
        [sys.executable, __file__, str(store), what],
        env={**os.environ, "HOLDFAST_FAULTS": str(faults)},
        capture_output=True,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()


if __name__ == "__main__":
    if sys.argv[2] == "mend":
        opened, before, after = torn_shop(Path(sys.argv[1]))
        opened.change([before], [after])
    else:
        Shop(Path(sys.argv[1])).change([OLD], [NEW])
