"""Graphs that change while a job runs: whichever way a slice comes back, it is what the one that lived through it is.

Random histories: stages come, go, are run with other parameters, emptied, cut down, left out and split off others;
graphs are written that no prepare names; the janitor takes away what may go. One container lives through all of it;
others have the slices from the log alone, from a checkpoint of some epoch, or from copies of some epochs, and all of
them must hold what plain Python makes of the rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from _pytest.outcomes import Failed
from pyspark import cloudpickle

from holdfast import faults
from holdfast.api import states
from holdfast.container import splits
from holdfast.container.copies_out import Walk
from holdfast.container.handlers import Handlers, Jobs
from holdfast.container.job import HostedJob
from holdfast.container.restore import Revived
from holdfast.container.staging import Staging
from holdfast.container.thread_table import ThreadTable
from holdfast.errors import EpochGone
from holdfast.invariants import Impossible, some
from holdfast.log.janitor import Janitor
from holdfast.log.ledger import Ledger
from holdfast.log.pack import PackWriter, pack_name
from holdfast.log.past import Past
from holdfast.log.records import FEED, Fence, GraphFile, JobFile, Manifest, Prepare, Range, SegmentRef
from holdfast.log.segment import SegmentWriter, segment_name
from holdfast.log.store import Store
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.lookup import LookupSpec
from holdfast.operators.process import ProcessSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.operators.top_k import TopKSpec
from holdfast.state.copies import encode
from holdfast.state.table_slice import TableSlice
from holdfast.wire.questions import Get, Got

SLICES, EPOCHS = 2, 9
KEYS, VALUES = (Column("k", "bigint"),), (Column("v", "bigint"),)
FOUND = (Column("n", "bigint"), Column("total", "bigint"))
COUNT, TOTAL = AggregateSpec("n", "count", None, None), AggregateSpec("total", "sum", "v0", "bigint")


def adding(key: Any, rows: list[dict[str, Any]], context: Any) -> Any:
    context.state.total += context.parameters["times"] * sum(row["v"] for row in rows)
    yield {"k": key}


FUNCTION: bytes = cloudpickle.dumps(adding)  # type: ignore[no-untyped-call]
STATES = (replace(states.value("bigint", default=0).spec, name="total"),)


def counts(number: int) -> StagePlan:
    return StagePlan(f"counts{number}", 1, (InputPlan(1, number),), StageSpec(KEYS, (COUNT, TOTAL)))


def called(number: int, times: int) -> StagePlan:
    spec = ProcessSpec(KEYS, VALUES, None, FUNCTION, STATES, (("", KEYS),), parameters=f'{{"times": {times}}}')
    return StagePlan(f"called{number}", 1, (InputPlan(1, number),), spec)


def tops(number: int, k: int) -> StagePlan:
    return StagePlan(f"tops{number}", 1, (InputPlan(1, number),), TopKSpec(KEYS, VALUES, ((0, True),), k))


def looked(number: int, peer: str) -> StagePlan:
    return StagePlan(f"looked{number}", 2, (InputPlan(1, number),), LookupSpec(KEYS, VALUES, peer, FOUND))


class History:
    """A store in which a job is changed and changed again, and what plain Python makes of its rows."""

    def __init__(self, path: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.plans: list[StagePlan] = [counts(0), called(1, 1), tops(2, 6)]
        self.used = 3
        self.resets: set[str] = set()
        self.cuts: set[str] = set()
        self.ledger = Ledger(Store(str(path)), "main")
        stages = [plan.to_dict() for plan in self.plans]
        names = {plan.name: plan.name for plan in self.plans}  # of a hub, as it were
        self.ledger.open_or_create_job(JobFile("j", "job", {}, SLICES, 0, stages=stages, names=names))
        self.left_out: tuple[str, ...] = ()
        self.rows: dict[str, dict[int, list[int]]] = {}
        """Of tops: all values of a key since they were emptied."""
        self.truth: dict[str, dict[int, list[int]]] = {plan.name: {} for plan in self.plans}
        self.splits: list[tuple[str, str, int]] = []
        self.threads = ThreadTable(1)

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.threads.close()

    def change(self, epoch: int) -> bool:
        """One change, at random, from that epoch on; whether there was one."""
        kinds = [
            "none",
            "counts",
            "called",
            "tops",
            "looked",
            "gone",
            "gone",
            "times",
            "void",
            "reset",
            "reset",
            "k",
            "k",
            "split",
            "split",
            "split",
        ]
        kind = self.draw.choice(kinds)
        plans = list(self.plans)
        spec: Any
        names = [plan.name for plan in plans if plan.name.startswith("counts")]
        match kind:
            case "counts":
                plans.append(counts(self.used))
            case "called":
                plans.append(called(self.used, 1))
            case "tops":
                plans.append(tops(self.used, self.draw.randrange(1, 9)))
            case "reset":
                emptied = self.draw.choice([plan for plan in plans if not plan.name.startswith("looked")])
                self.resets.add(emptied.name)
                if emptied.name.startswith("tops"):  # it may show more rows then
                    plans[plans.index(emptied)] = _with_k(emptied, self.draw.randrange(1, 9))
            case "k":
                mine = [at for at, plan in enumerate(plans) if plan.name.startswith("tops")]
                if not mine:
                    return False
                at = self.draw.choice(mine)
                spec = plans[at].operator
                plans[at] = _with_k(plans[at], self.draw.randrange(1, spec.limit + 1))
                self.cuts.add(plans[at].name)
            case "looked" if names:
                plans.append(looked(self.used, self.draw.choice(names)))
            case "gone":
                needed = {peer for plan in plans for peer in plan.peers}
                may = [plan for plan in plans if plan.name not in needed]
                if len(plans) < 2 or not may:
                    return False
                plans.remove(self.draw.choice(may))
            case "times":
                mine = [at for at, plan in enumerate(plans) if plan.name.startswith("called")]
                if not mine:
                    return False
                at = self.draw.choice(mine)
                spec = plans[at].operator
                plans[at] = replace(plans[at], operator=spec.calling(None, f'{{"times": {self.draw.randrange(2, 9)}}}'))
            case "split":
                source = self.draw.choice([plan for plan in plans if not plan.name.startswith("looked")])
                self.split(source, epoch)
                return True
            case "void":  # its driver died before a prepare named it
                before = self.ledger.graph()
                self._put([*plans, counts(self.used)])
                self.used += 1
                self.ledger._graph = (before,)
                return False
            case _:
                return False
        if kind in ("counts", "called", "tops", "looked"):
            self.used += 1
        self.plans = plans
        self._put(plans)
        return True

    def split(self, source: StagePlan, epoch: int) -> StagePlan:
        """A stage of its own that goes on from what another holds, with other rows; some who read that one follow."""
        kind = source.name.rstrip("0123456789")
        made = replace(source, name=f"{kind}{self.used}", inputs=(InputPlan(1, self.used),))
        self.used += 1
        for turns in (self.resets, self.cuts):
            turns.update([made.name] if source.name in turns else ())
        self.left_out += (made.name,) if source.name in self.left_out else ()
        if self.draw.random() < 0.3:
            self.resets.add(made.name)
        elif kind == "tops":
            made = _with_k(made, self.draw.randrange(1, cast(Any, source.operator).limit + 1))
            self.cuts.add(made.name)
        self.truth[made.name] = deepcopy(self.truth[source.name])
        self.rows[made.name] = deepcopy(self.rows.get(source.name, {}))
        followed = [made]
        for plan in self.plans:
            if source.name in plan.peers and self.draw.random() < 0.5:
                plan = replace(plan, operator=replace(cast(LookupSpec, plan.operator), peer=made.name))
            followed.append(plan)
        self.plans = followed
        self.splits.append((made.name, source.name, epoch))
        self._put(followed, {made.name: source.name}, epoch)
        return made

    @property
    def floor(self) -> int:
        """A copy from below it lacks what a stage of now was split off: that is gone."""
        there = {plan.name for plan in self.plans}
        return max((epoch for made, source, epoch in self.splits if made in there and source not in there), default=0)

    def _put(self, plans: Sequence[StagePlan], splits: Mapping[str, str] = {}, epoch: int | None = None) -> None:
        former = self.ledger.graph()
        stages = [plan.to_dict() for plan in plans]
        version = self.ledger.next_graph()
        graph = GraphFile(version, 0, 1, {}, stages, [], [], [], 0, live=True, former=former.version if former else 0)
        past = Past.of(self.ledger.graphs()).to_dict()
        graph = replace(graph, names={plan.name: plan.name for plan in plans}, past=past)
        graph = replace(graph, splits=dict(splits), splits_at=epoch)
        self.ledger.put_graph(graph)

    def log(self, epoch: int) -> list[Prepare]:
        """Rows for every input that there is, and for some that there is not any more."""
        writer, fence = SegmentWriter(SLICES), Fence(1, epoch, 1)
        rows: dict[int, list[tuple[int, int]]] = {}
        for number in range(self.used):
            rows[number] = [(self.draw.randrange(7), self.draw.randrange(100)) for _ in range(self.draw.randrange(12))]
            if rows[number]:
                keys, values = (pa.array(one, pa.int64()) for one in zip(*rows[number], strict=True))
                hashed = np.asarray(keys)
                batch = pa.record_batch({"_h": pa.array(hashed), "k0": keys, "v0": values})
                writer.append(number, batch, hashed % SLICES)
        name = segment_name(fence, 1, 0, epoch)
        nbytes = self.ledger.section.write(name, writer.parts())
        ref = SegmentRef(name, writer.rows, nbytes, writer.checksum, 0, epoch)
        there = [plan.name for plan in self.plans]
        self.left_out = tuple(name for name in self.left_out if name in there and self.draw.random() < 0.7)
        levels = range(1, max(plan.level for plan in self.plans) + 1)
        for level in levels:
            refs = (ref,) if level == 1 else ()
            prepare = Prepare(fence, level, {FEED: Range(epoch, epoch)}, refs, clock=0, left_out=self.left_out)
            self.ledger.put_prepare(replace(prepare, resets=tuple(self.resets), cuts=tuple(self.cuts)))
        while self.draw.random() < 0.2:  # somebody has raised in it
            self.left_out = self.ledger.leave_out(fence, [*self.left_out, self.draw.choice(there)], "").stages
        self._count(rows)
        for turns in (self.resets, self.cuts):
            turns.intersection_update(self.left_out)  # they still have it before them
        return [some(self.ledger.get_prepare(epoch, level), "it was just stored") for level in levels]

    def _count(self, rows: dict[int, list[tuple[int, int]]]) -> None:
        for plan in self.plans:
            held = self.truth.setdefault(plan.name, {})
            if plan.name in self.left_out:
                continue
            operator: Any = plan.operator
            if plan.name in self.resets:
                held.clear()
                self.rows[plan.name] = {}
            if plan.name.startswith("tops"):
                had = self.rows.setdefault(plan.name, {})
                for key, value in rows[plan.inputs[0].number]:
                    had.setdefault(key, []).append(value)
                self.truth[plan.name] = {key: sorted(had[key], reverse=True)[: operator.k] for key in had}
                continue
            times = int(operator.parameters.split(":")[1][:-1]) if plan.name.startswith("called") else 1
            for key, value in rows[plan.inputs[0].number]:
                n, total = held.get(key, [0, 0])
                held[key] = [n + 1, total + times * value]
        for name in [name for name in self.truth if name not in {plan.name for plan in self.plans}]:
            del self.truth[name]

    @contextmanager
    def job(self, graph: int | None = None) -> Iterator[HostedJob]:
        """A container that was started under that version of the graph; None: the newest."""
        graphs = self.ledger.graphs()
        version = graphs.newest if graph is None else graph
        plans = [StagePlan.from_dict(one) for one in graphs.stages(version)]
        own = Ledger(self.ledger.store, "main")
        job = HostedJob("j", plans, SLICES, own, self.threads, Staging(0), graph=version)
        try:
            yield job
        finally:
            job.close()

    def check(self, job: HostedJob, epoch: int) -> None:
        assert set(job.stages) == self.truth.keys()
        for name, stage in job.stages.items():
            if name.startswith("looked"):
                continue
            rows = pa.Table.from_batches([stage.held(number).state.read(epoch) for number in range(SLICES)])
            if name.startswith("tops"):
                shown = sorted((row["k"], row["rank"], row["v"]) for row in rows.to_pylist())
                assert shown == sorted(
                    (k, at + 1, v) for k, top in self.truth[name].items() for at, v in enumerate(top)
                )
                continue
            found = {row["k"]: [row.get("n"), row["total"]] for row in rows.to_pylist()}
            wanted = {
                key: [n if name.startswith("counts") else None, total]
                for key, (n, total) in self.truth[name].items()
                if name.startswith("counts") or total  # a state that is its default is not there
            }
            assert found == wanted, name


def _with_k(plan: StagePlan, k: int) -> StagePlan:
    return replace(plan, operator=plan.operator.limited(k))


def content(job: HostedJob, epoch: int) -> dict[str, list[bytes]]:
    """Every table of every slice, row by row."""
    found: dict[str, list[bytes]] = {}
    for name, stage in job.stages.items():
        for number in range(SLICES):
            for at in range(len(stage.operator.layouts)):
                whole = stage.held(number).state.delta(0, epoch, table=at)
                found.setdefault(name, []).append(bytes(whole.replace_schema_metadata(None).serialize()))
    return found


def copy(owner: HostedJob, to: HostedJob, epoch: int) -> None:
    """As an owner sends its copies to a peer."""
    to.adopt(owner.graph)
    walk = Walk(owner, f"copy{epoch}", epoch, dict.fromkeys(range(SLICES), 1))
    have = to.backups.versions(range(SLICES))
    for number in range(SLICES):
        if have.get(number, -1) < epoch:
            for table, tables, header, part in walk.parts(number, max(have.get(number, -1), 0)):
                plain = encode([part])
                assert to.backups.receive(walk.pin, table, number, header, plain, tables)


def checkpoint(history: History, owner: HostedJob, epoch: int) -> int:
    fence = Fence(1, epoch, 0)
    name = pack_name(fence, "c")
    PackWriter().write(history.ledger.section, name, owner.reading.packed(epoch, range(SLICES)))
    prepare = history.ledger.get_prepare(epoch, 1)
    assert prepare is not None
    history.ledger.put_manifest(Manifest(epoch, fence, (name,), (0,) * SLICES, "a test", prepare.graph))
    return epoch


def live_through(path: Path, seed: int) -> None:
    draw = random.Random(-seed)
    with History(path, seed) as history, history.job() as owner, history.job() as peer, history.job() as idle:
        owner.restore(range(SLICES), 0, 0)
        taken = copied = cut = 0
        tidy = draw.random() < 0.5
        for epoch in range(1, EPOCHS + 1):
            history.change(epoch)
            for prepare in history.log(epoch):
                owner.apply(prepare, range(SLICES))
                if draw.random() < 0.2:  # it is undone, and applied again
                    owner.undo(epoch, range(SLICES))
                    for again in range(1, prepare.level + 1):
                        found = history.ledger.get_prepare(epoch, again)
                        assert found is not None
                        owner.apply(found, range(SLICES))
            if draw.random() < 0.4:
                copy(owner, peer, epoch)
                copied = epoch
            if draw.random() < 0.4:
                before, taken = taken, checkpoint(history, owner, epoch)
                if tidy:
                    Janitor(history.ledger.store, "main", 1).round(before)
                    cut = before
            owner.commit(epoch)
            history.check(owner, epoch)
        last, known = content(owner, EPOCHS), owner.state_digests(EPOCHS, range(SLICES))
        idle.restore(range(SLICES), EPOCHS, taken)  # it has known the first graph alone until now
        with history.job() as logged:
            if not cut:
                logged.restore(range(SLICES), EPOCHS, 0)
            for job in (idle, *([] if cut else [logged])):
                history.check(job, EPOCHS)
                assert content(job, EPOCHS) == last
                assert job.state_digests(EPOCHS, range(SLICES)) == known
        if cut:
            named = history.ledger.get_prepare(cut, 1)
            assert named is not None
            assert min(history.ledger.graph_versions(), default=named.graph) >= named.graph
        if copied < history.floor:
            with pytest.raises(EpochGone, match="Nothing is here of epoch"):
                peer.activate(range(SLICES), EPOCHS)
        elif copied > cut or (copied and not cut):
            peer.activate(range(SLICES), EPOCHS)
            history.check(peer, EPOCHS)
            assert content(peer, EPOCHS) == last
            assert peer.state_digests(EPOCHS, range(SLICES)) == known
        owner.demote(range(SLICES), EPOCHS)
        owner.activate(range(SLICES), EPOCHS)
        history.check(owner, EPOCHS)


def live_through_many(path: Path, seeds: Sequence[int]) -> None:
    for seed in seeds:
        live_through(path / str(seed), seed)


def test_whichever_way_a_slice_comes_back_it_lived_through_every_graph(tmp_path: Path, drill_seed: int) -> None:
    live_through_many(tmp_path, range(30 * drill_seed, 30 * drill_seed + 30))


def _unmarked(self: TableSlice, parts: Sequence[pa.RecordBatch], epoch: int) -> None:
    self.load(parts, epoch)  # whoever has a copy from before is not told that all of it is new


def _floorless(*_: object) -> int:
    return 0  # copies are kept that lack what a stage was split off


PLANTED = [
    (2, TableSlice, "begin_with", _unmarked),
    (2, Revived, "_split_off", lambda *_: None),
    (1, splits, "at", lambda *_: None),
    (23, splits, "floor", _floorless),
]
"""With the first history that shows it: where the search begins, which goes on until one does."""
HISTORIES = 400


@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one[2])
def test_a_planted_bug_of_splits_is_found(planted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *bug = planted
    monkeypatch.setattr(*bug)
    if bug[1] == "at":
        monkeypatch.setattr(splits, "begun", lambda *_: {})
    with pytest.raises((AssertionError, Failed, Impossible, EpochGone)):
        live_through_many(tmp_path, range(first, first + HISTORIES))


def test_a_slice_that_lags_behind_begins_with_what_its_source_held(tmp_path: Path) -> None:
    """It may also lag so far behind that the source is gone: then it is brought back from the store."""
    with (
        History(tmp_path / "store", 5) as history,
        history.job() as owner,
        history.job() as lagging,
        history.job() as late,
    ):
        for job in (owner, lagging, late):
            job.restore(range(SLICES), 0, 0)
        prepares = history.log(1)
        source = history.plans[0]
        history.split(source, 2)
        prepares += history.log(2)
        for prepare in prepares:
            owner.apply(prepare, range(SLICES))
        lagging.adopt(prepares[-1].graph)  # by a copy, say
        for prepare in prepares:
            lagging.apply(prepare, range(SLICES))
        for job in (owner, lagging):
            history.check(job, 2)
        assert content(owner, 2) == content(lagging, 2)
        history.plans.remove(source)
        history._put(history.plans)
        prepares += history.log(3)
        for prepare in prepares[-1:]:
            owner.apply(prepare, range(SLICES))
        late.adopt(prepares[-1].graph)
        with pytest.raises(EpochGone, match="is not here"):
            late.apply(prepares[0], range(SLICES))
        late.restore(range(SLICES), 3, 0)
        for job in (owner, late):
            history.check(job, 3)
        assert content(owner, 3) == content(late, 3)


def test_a_slice_that_lags_behind_is_brought_on_by_the_graph_of_then(tmp_path: Path) -> None:
    """The destination of a move may still be at an epoch before the change, when the change is there."""
    with History(tmp_path / "store", 3) as history, history.job() as owner, history.job() as lagging:
        for job in (owner, lagging):
            job.restore(range(SLICES), 0, 0)
        first = history.log(1)
        history.plans = [counts(0), called(1, 7), tops(2, 2), counts(3)]
        history.used, history.cuts = 4, {"tops2"}
        history._put(history.plans)
        second = history.log(2)
        for prepare in (*first, *second):
            owner.apply(prepare, range(SLICES))
        lagging.adopt(second[0].graph)  # by a copy, say
        for prepare in (*first, *second):
            lagging.apply(prepare, range(SLICES))
        for job in (owner, lagging):
            history.check(job, 2)
        assert content(owner, 2) == content(lagging, 2)


def test_a_change_that_comes_in_the_middle_of_an_epoch_leaves_no_slice_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destination of a move is slow with an epoch, and hears of the next one's graph by a copy."""
    with History(tmp_path / "store", 3) as history, history.job() as owner, history.job() as slow:
        for job in (owner, slow):
            job.restore(range(SLICES), 0, 0)
        first = history.log(1)
        history.split(history.plans[0], 2)
        history.plans = [*history.plans, counts(history.used)]
        history.used += 1
        history._put(history.plans)
        second = history.log(2)
        for prepare in (*first, *second):
            owner.apply(prepare, range(SLICES))

        def adopt(_role: str, place: str, epoch: int) -> None:
            if (place, epoch) == ("mid-apply", 1):
                slow.adopt(second[0].graph)

        with monkeypatch.context() as patch:
            patch.setattr(faults, "place", adopt)
            slow.apply(first[0], range(SLICES))
        assert set(slow.stages) == {plan.name for plan in history.plans}
        assert {held.state.epoch for stage in slow.stages.values() for held in stage.slices.values()} == {1}
        for prepare in second:
            slow.apply(prepare, range(SLICES))
        for job in (owner, slow):
            history.check(job, 2)
        assert content(owner, 2) == content(slow, 2)


def test_a_copy_from_before_a_stage_was_split_off_says_nothing_of_it(tmp_path: Path) -> None:
    """Who asks for a key while the owner is away must not be told that there is none."""
    with History(tmp_path / "store", 5) as history, history.job() as owner, history.job() as peer:
        owner.restore(range(SLICES), 0, 0)
        for prepare in history.log(1):
            owner.apply(prepare, range(SLICES))
        copy(owner, peer, 1)
        source = history.plans[0]
        made = history.split(source, 2)
        history.resets.clear()
        second = history.log(2)
        for prepare in second:
            owner.apply(prepare, range(SLICES))
        key = min(history.truth[source.name])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, (asked := pa.record_batch({"_h": [key], "k0": [key]})).schema) as out:
            out.write_batch(asked)
        handlers = Handlers("p", "token", Jobs("p"), history.threads, 0)

        def got(stage: str) -> Got:
            return handlers.get(peer, Get(stage, key % SLICES, None, bytes(sink.getvalue())))

        with pytest.raises(EpochGone, match="There is no stage"):
            got(made.name)  # it has not heard of it yet
        peer.adopt(second[0].graph)
        assert got(source.name).epoch == 1
        with pytest.raises(EpochGone, match="was split off another one after epoch 1"):
            got(made.name)
        copy(owner, peer, 2)
        assert got(made.name).epoch == 2


def test_a_stage_that_is_gone_is_not_read(tmp_path: Path) -> None:
    with History(tmp_path / "store", 4) as history, history.job() as owner:
        owner.restore(range(SLICES), 0, 0)
        for prepare in history.log(1):
            owner.apply(prepare, range(SLICES))
        history.plans = [called(1, 1)]
        history._put(history.plans)
        for prepare in history.log(2):
            owner.apply(prepare, range(SLICES))
        with pytest.raises(EpochGone, match="Stage 'counts0' is not part of the job any more"):
            list(owner.reading.outputs("counts0", [0], 1, "read"))
