"""Slices brought forward by the log: each stage from its own version, each epoch in the terms of its own graph.

No Spark and no process: the log is written by hand, with other rows for every input, and what comes of it is compared
with plain Python over those rows.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.container.copies_out import Walk
from holdfast.container.job import HostedJob
from holdfast.container.restore import Revived
from holdfast.container.staging import Staging
from holdfast.container.thread_table import ThreadTable
from holdfast.errors import EpochGone, StoreError
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Fence, GraphFile, JobFile, Prepare, Range, SegmentRef
from holdfast.log.segment import SegmentWriter, segment_name
from holdfast.log.store import Store
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.lookup import LookupSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.stage import InputPlan, StagePlan

SLICES = 2
KEYS = (Column("k", "bigint"),)
N = AggregateSpec("n", "count", None, None)
TOTAL = AggregateSpec("total", "sum", "v0", "bigint")
COUNTS = StagePlan("counts", 1, (InputPlan(1, 0),), StageSpec(KEYS, (N, TOTAL)))
OTHERS = StagePlan("others", 1, (InputPlan(1, 1),), StageSpec(KEYS, (TOTAL,)))
LOOKED = StagePlan(
    "looked",
    2,
    (InputPlan(1, 2),),
    LookupSpec(KEYS, (Column("v", "bigint"),), "counts", (Column("n", "bigint"), Column("total", "bigint"))),
)
PLANS = (COUNTS, OTHERS, LOOKED)
EPOCHS = 3

Rows = list[tuple[int, int]]
Log = dict[int, dict[int, Rows]]  # epoch → number of the input → (key, value)


class Shop:
    """A store, what was logged in it, and jobs over it."""

    def __init__(self, path: Path, plans: Sequence[StagePlan] = PLANS) -> None:
        self.ledger = Ledger(Store(str(path)), "main")
        self.logged: Log = {}
        self.ledger.open_or_create_job(JobFile("j", "job", {}, SLICES, 0, stages=[plan.to_dict() for plan in plans]))

    def log(self, epoch: int, numbers: Sequence[int] = (0, 1, 2), levels: int = 2) -> None:
        draw = random.Random(epoch)
        self.logged[epoch] = {
            number: [(draw.randrange(9), 1000 * number + draw.randrange(100)) for _ in range(20)] for number in numbers
        }
        writer, fence = SegmentWriter(SLICES), Fence(1, epoch, 1)
        for number, rows in self.logged[epoch].items():
            keys, values = (pa.array(one, pa.int64()) for one in zip(*rows, strict=True))
            hashed = np.asarray(keys)
            batch = pa.record_batch({"_h": pa.array(hashed), "k0": keys, "v0": values})
            writer.append(number, batch, hashed % SLICES)
        name = segment_name(fence, 1, 0, epoch)
        nbytes = self.ledger.section.write(name, writer.parts())
        ref = SegmentRef(name, writer.rows, nbytes, writer.checksum, 0, epoch)
        for level in range(1, levels + 1):
            ranges = {FEED: Range(epoch, epoch)}
            self.ledger.put_prepare(Prepare(fence, level, ranges, (ref,) if level == 1 else (), clock=0))

    def change(self, epoch: int, *plans: StagePlan, mends: int = 0) -> None:
        """From that epoch on the job has these stages."""
        graph = self.ledger.graph()
        version = graph.version + 1 if graph else 1
        stages = [plan.to_dict() for plan in plans]
        self.ledger.put_graph(GraphFile(version, epoch, 1, {}, stages, [], [], [], 0, mends=mends))

    @contextmanager
    def job(self, *plans: StagePlan) -> Iterator[HostedJob]:
        threads = ThreadTable(1)
        job = HostedJob("j", plans or PLANS, SLICES, Ledger(self.ledger.store, "main"), threads, Staging(0))
        try:
            yield job
        finally:
            job.close()
            threads.close()

    def restored(self, epoch: int, *plans: StagePlan) -> dict[str, list[Any]]:
        with self.job(*plans) as job:
            revived = Revived(job)
            revived.load_packs(range(SLICES), None)
            revived.replay(epoch)
            return results(job, revived, epoch)


def results(job: HostedJob, revived: Revived, epoch: int) -> dict[str, list[Any]]:
    """What every stage holds, or has put out if it holds nothing."""
    found = {}
    for name, held in revived.fresh.items():
        states = [one.state for one in held.values()]
        rows = [one.outputs(epoch, "changed") if job.stages[name].plan.peers else one.read(epoch) for one in states]
        found[name] = sorted(tuple(row.values()) for row in pa.Table.from_batches(rows).to_pylist())
    return found


def aggregated(log: Log, number: Mapping[int, int] | int, until: int) -> dict[int, tuple[int, int]]:
    """key → (rows, their sum) of an input, whose number may be another in each epoch."""
    found: dict[int, tuple[int, int]] = {}
    for epoch in range(1, until + 1):
        for key, value in log[epoch][number if isinstance(number, int) else number[epoch]]:
            n, total = found.get(key, (0, 0))
            found[key] = (n + 1, total + value)
    return found


def oracle(log: Log, epoch: int) -> dict[str, list[Any]]:
    counts = aggregated(log, 0, epoch)
    return {
        "counts": sorted((key, *held) for key, held in counts.items()),
        "others": sorted((key, total) for key, (_, total) in aggregated(log, 1, epoch).items()),
        "looked": sorted((key, value, *counts.get(key, (None, None))) for key, value in log[epoch][2]),
    }


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "store")


def test_every_stage_of_a_slice_goes_on_from_its_own_version(shop: Shop) -> None:
    for epoch in range(1, EPOCHS + 1):
        shop.log(epoch)
    expected = oracle(shop.logged, EPOCHS)
    assert shop.restored(EPOCHS) == expected
    refused = 0
    for versions in itertools.product(range(EPOCHS + 1), repeat=len(PLANS)):
        at = {plan.name: version for plan, version in zip(PLANS, versions, strict=True)}
        with shop.job() as job:
            revived = Revived(job)
            for name, version in at.items():
                with shop.job() as source:
                    source.restore(range(SLICES), version, 0)
                    for number in range(SLICES):
                        state = job.stages[name].operator.new_slice()
                        state.activate(source.stages[name].held(number).state.demote())
                        assert state.epoch == version
                        revived.put(name, number, state)
            if at["looked"] < EPOCHS and at["counts"] > at["looked"] + 1:
                refused += 1
                with pytest.raises(EpochGone, match="looks into 'counts', which is at"):
                    revived.replay(EPOCHS)
                continue
            replayed = revived.replay(EPOCHS)
            inputs = {"counts": 0, "others": 1, "looked": 2}
            missing = [(inputs[name], e) for name, version in at.items() for e in range(version + 1, EPOCHS + 1)]
            assert replayed == sum(len(shop.logged[epoch][number]) for number, epoch in missing), at
            if at["looked"] == EPOCHS:
                del revived.fresh["looked"]  # what it put out was known to the one that it was copied from
            found = results(job, revived, EPOCHS)
            assert found == {name: expected[name] for name in found}, at
    assert refused == 12, "of 64"


def test_slices_at_different_versions_beside_one_another(shop: Shop) -> None:
    for epoch in range(1, EPOCHS + 1):
        shop.log(epoch)
    with shop.job() as job:
        revived = Revived(job)
        for number, version in ((0, 0), (1, 2)):
            with shop.job() as source:
                source.restore([number], version, 0)
                for name, stage in job.stages.items():
                    state = stage.operator.new_slice()
                    state.activate(source.stages[name].held(number).state.demote())
                    revived.put(name, number, state)
        revived.replay(EPOCHS)
        assert results(job, revived, EPOCHS) == oracle(shop.logged, EPOCHS)


# --- graphs ---------------------------------------------------------------------------------------------------------


def moved(plan: StagePlan, number: int, level: int | None = None) -> StagePlan:
    return replace(plan, inputs=(InputPlan(1, number),), level=level or plan.level)


def test_epochs_of_another_graph_are_read_by_its_own_numbers_and_levels(shop: Shop) -> None:
    shop.log(1)
    shop.log(2)
    now = (moved(COUNTS, 7), moved(LOOKED, 1, level=3))
    shop.change(2, *now)
    shop.log(3, numbers=(0, 1, 7), levels=3)
    shop.log(4, numbers=(0, 1, 7), levels=3)
    counts = aggregated(shop.logged, {1: 0, 2: 0, 3: 7, 4: 7}, 4)
    assert shop.restored(4, *now) == {
        "counts": sorted((key, *held) for key, held in counts.items()),
        "looked": sorted((key, value, *counts.get(key, (None, None))) for key, value in shop.logged[4][1]),
    }
    before = aggregated(shop.logged, 0, 2)
    assert shop.restored(2, *now)["looked"] == sorted(
        (key, value, *before.get(key, (None, None))) for key, value in shop.logged[2][2]
    )


def test_what_was_not_there_or_did_something_else_cannot_be_replayed(shop: Shop) -> None:
    shop.log(1)
    new = replace(COUNTS, name="new", inputs=(InputPlan(1, 3),))
    shop.change(1, COUNTS, new)
    shop.log(2, numbers=(0, 3))
    with pytest.raises(StoreError, match=r"epoch 1 cannot be replayed: .*\(job.json\), and stage 'new' was not part"):
        shop.restored(2, COUNTS, new)
    other = replace(COUNTS, operator=StageSpec(KEYS, (TOTAL,)))
    shop.change(2, other)
    with pytest.raises(StoreError, match="stage 'counts' did something else then"):
        shop.restored(2, other)


def test_a_stage_that_was_gone_in_between_did_not_go_on(shop: Shop) -> None:
    """No epoch names the graph without it, and yet its state was dropped there."""
    shop.log(1)
    shop.change(1, OTHERS)
    shop.change(1, COUNTS, OTHERS)
    shop.log(2)
    with pytest.raises(StoreError, match=r"graph/0000000001.json\), and stage 'counts' was not part of it"):
        shop.restored(2, COUNTS, OTHERS)
    assert shop.restored(2, OTHERS)["others"] == oracle(shop.logged, 2)["others"]


def test_an_epoch_that_a_later_graph_mends_is_in_its_terms(shop: Shop) -> None:
    shop.log(1)
    mended = replace(COUNTS, operator=StageSpec(KEYS, (N, TOTAL), ansi=True, overflow="null"))
    shop.change(0, mended, mends=1)
    assert shop.restored(1, mended)["counts"] == oracle(shop.logged, 1)["counts"]


def test_prepares_that_name_no_graph_go_by_their_epoch(shop: Shop) -> None:
    shop.log(1)
    shop.change(1, moved(COUNTS, 5))
    shop.log(2, numbers=(0, 5))
    graphs = shop.ledger.graphs()
    for epoch, version in ((1, 0), (2, 1)):
        prepare = shop.ledger.get_prepare(epoch, 1)
        assert prepare is not None
        assert graphs.version_of(prepare) == graphs.version_of(replace(prepare, graph=-1)) == version


def test_a_container_of_a_replaced_driver_does_not_replay_what_came_after_it(shop: Shop) -> None:
    shop.log(1)
    with shop.job(COUNTS) as job:
        job.restore(range(SLICES), 1, 0)
        shop.change(1, moved(COUNTS, 5))
        shop.log(2, numbers=(0, 5))
        with pytest.raises(StoreError, match="a later graph of the job than the one that runs here"):
            job.restore(range(SLICES), 2, 0)


def test_a_copy_of_a_slice_without_rows_becomes_active_whatever_its_first_stage_is(tmp_path: Path) -> None:
    """Of such a slice one table is sent, to have something to tell the epoch by; this stage keeps two."""
    distinct = AggregateSpec("values", "count_distinct", "v0", "bigint")
    several = StagePlan("several", 1, (InputPlan(1, 0),), StageSpec(KEYS, (distinct,)))
    shop = Shop(tmp_path, (several,))
    with shop.job(several) as owner, shop.job(several) as peer:
        owner.restore([0], 0, 0)
        owner.stages["several"].held(0).state.pass_over(1)
        for table, count, header, part in Walk(owner, "w", 1, {0: 1}).parts(0, 0):
            peer.backups.receive("copy", table, 0, header, part, count)
        assert peer.backups.versions([0]) == {0: 1}
        peer.activate([0], 1)
        assert peer.stages["several"].held(0).state.rows == 0
