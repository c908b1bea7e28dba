"""The shipped job once more under continuous eventual checkpoints: no copies, no packs, units of the state in the log.

Beside the two running aggregates there is a stage whose state closes: windows of three rows, which end, and begin again
under the same key. How much a slice writes again in an epoch is drawn, where a container would look at its clock. The
janitor cuts the log as often as it likes, and one file of entries at a time may go bad: what is left must do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from holdfast.container import footprints
from holdfast.container.job import HostedJob
from holdfast.container.slices import HostedStage
from holdfast.container.staging import Staging
from holdfast.container.steering import Steering
from holdfast.driver.units import Written
from holdfast.errors import HoldfastError
from holdfast.invariants import invariant, some
from holdfast.log import janitor
from holdfast.log.footprints import Chains, Entry, Footprints, Wrote, epoch_of, newest
from holdfast.log.janitor import Janitor
from holdfast.log.ledger import Ledger
from holdfast.log.records import Fence, Prepare
from holdfast.master.events import Answer, Applied
from holdfast.master.instructions import Apply, Restore, StoreCommit, ToContainer
from holdfast.operators.marked import Marked
from holdfast.operators.spec import AggregateSpec, Column, Operator
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.operators.unit_table import EPOCH, ROWS, Pace
from holdfast.operators.window import WindowSpec
from holdfast.safety.policies import Checks, Terms
from holdfast.state.table_slice import TableSlice
from simulator.job_store import DiskStore
from simulator.shipped import (
    PLANS,
    SLICES,
    ShippedContainer,
    ShippedJob,
    ShippedStore,
    file_store,
    slice_of,
)

THREE = StagePlan(
    "threes",
    1,
    (InputPlan(1, 0),),
    WindowSpec(
        (Column("k", "bigint"),),
        (AggregateSpec("n", "count", None, None), AggregateSpec("total", "sum", "v0", "bigint")),
        (Column("v", "bigint"),),
        3,
        3,
        "rows",
        None,
        numbered=False,
    ),
)
"""Windows of three rows of a key. A key without an open one is forgotten."""
MARKED = (*PLANS, THREE)
LOOKS = 3
"""Every so manieth epoch it is compared with the log what slices believe of it."""
CHECKS = Checks(1.5, 20, 0.005, 0.1, 600.0)
Shown = tuple[str, int, int, int]


class Drawn(Steering):
    """What an epoch may spend on checks is a matter of luck."""

    def __init__(self, name: str) -> None:
        super().__init__(CHECKS, SLICES)
        self._chance = random.Random(name)

    def operator(self, stage: HostedStage, number: int, shadow: bool) -> Operator:
        found, chance = super().operator(stage, number, shadow), self._chance
        if shadow or not isinstance(found, Marked):
            return found
        if chance.random() < 0.5:
            return found.noting("writes")
        pace = Pace(chance.choice((1.0, 2.0)), chance.choice((0.1, 1.0, 20.0)), chance.choice((1e-9, 3.0)), each=1.0)
        return found.noting("writes", pace)


class Files(HostedJob):
    """Entries are in files of their own, however few they are."""

    def entries(self, prepare: Prepare, slices: Sequence[int], label: str) -> Wrote | None:
        with patch.object(footprints, "INLINE_BYTES", 0):
            return super().entries(prepare, slices, label)


@dataclass
class EventualStore(ShippedStore):
    wrote: dict[int, list[tuple[str, Wrote]]] = field(default_factory=dict)
    """Of epochs that are not committed: what containers answered."""
    make_written: Callable[[Footprints | None], Written] = Written
    janitor: Janitor | None = None
    _windows: list[tuple[dict[int, tuple[int, ...]], list[tuple[int, int]]]] = field(default_factory=lambda: [({}, [])])
    """Of each epoch the rows of every key's open window, and what closed: (key, total)."""

    def footprints(self, ledger: Ledger, epoch: int) -> Footprints:
        if not epoch:
            return Footprints.begin([plan.name for plan in MARKED], SLICES)
        return some(some(ledger.get_commit(epoch), "a commit is gone").footprints, "it says nothing of units")

    def commit_of(self, told: StoreCommit) -> Any:
        """As the driver makes it, of what the owners wrote."""
        epoch, ledger = told.fence.epoch, self.ledger()
        written = self.make_written(self.footprints(ledger, epoch - 1))
        for container, one in self.wrote.get(epoch, []):
            written.take(epoch, container, one)
        marks, attached = written.named(epoch, told.owners)
        self.wrote = {at: of for at, of in self.wrote.items() if at >= epoch}
        return replace(super().commit_of(told), footprints=marks, attachments=attached)

    def tidy(self) -> list[str]:
        """A round of the janitor, which knows what it knew."""
        if self.janitor is None:
            self.janitor = Janitor(file_store(self.disk, self.make_files), "main", self.owner, lambda: None)
        kept, janitor.KEPT = janitor.KEPT, 2
        try:
            gone = self.janitor.round(0)
        finally:
            janitor.KEPT = kept
        left = {manifest.epoch for manifest in self.ledger().manifests(lambda _: None)}
        self.manifests = {one: packs for one, packs in self.manifests.items() if one in left}
        return gone

    def entries(self) -> list[str]:
        return [name for name in self.disk.names() if epoch_of(name) is not None]

    @property
    def whole(self) -> bool:
        """No file of entries is bad."""
        return not self._corrupt.intersection(self.entries())

    def reopened(self) -> None:
        super().reopened()
        self.janitor = None

    def corrupt_pack(self, chance: random.Random) -> str | None:
        """A file of entries: one at a time, until nobody needs it any more."""
        files = self.entries()
        self._corrupt &= set(files)
        if not files or self._corrupt:
            return None
        name = chance.choice(files[-8:])
        if chance.random() < 0.3:
            self.disk.put(name, self.disk.get(name)[: chance.randrange(10)])
        else:
            self.disk.corrupt(name, chance)
        self._corrupt.add(name)
        return name

    # --- the oracle ---------------------------------------------------------------------------------------

    def _window(self, epoch: int) -> tuple[dict[int, tuple[int, ...]], list[tuple[int, int]]]:
        while len(self._windows) <= epoch:
            windows, closed = dict(self._windows[-1][0]), []
            for key, value in self._rows_of(len(self._windows)):
                held = (*windows.pop(key, ()), value)
                if len(held) == 3:
                    closed.append((key, sum(held)))
                else:
                    windows[key] = held
            self._windows.append((windows, closed))
        return self._windows[epoch]

    def shown(self, slice_: int, epoch: int) -> Iterator[Shown]:
        yield from super().shown(slice_, epoch)
        for key, held in self._window(epoch)[0].items():
            if slice_of(key) == slice_:
                yield "threes", key, len(held), sum(held)

    def put_out(self, slice_: int, epoch: int) -> Iterator[Shown]:
        yield from super().put_out(slice_, epoch)
        for key, total in self._window(epoch)[1]:
            if slice_of(key) == slice_:
                yield "threes", key, 3, total


class EventualContainer(ShippedContainer):
    def hosted(self, store: ShippedStore, make_job: Callable[..., HostedJob]) -> HostedJob:
        job = make_job("j", MARKED, SLICES, store.ledger(), self._threads, Staging(0), checks=CHECKS)
        job.steering = Drawn(self.name)
        return job

    def perform(self, told: ToContainer) -> Answer:
        # What a driver that was replaced has had written may be named by no commit.
        if isinstance(told, Apply) and told.fence.epoch % LOOKS == 0 and told.id.startswith(f"{self.store.owner}."):
            self.believes()
        answer = super().perform(told)
        if isinstance(told, Apply) and isinstance(answer, Applied) and answer.entries is not None:
            if not isinstance(self.store, EventualStore):
                raise TypeError("a store without units")
            self.store.wrote.setdefault(told.fence.epoch, []).append((self.name, answer.entries))
        return answer

    def check(self) -> None:
        super().check()
        self.believes()

    def believes(self) -> None:
        """Nobody believes that the log has more of a unit, or has it from later on, than it has."""
        if not isinstance(self.store, EventualStore):
            raise TypeError("a store without units")
        committed, chains = self.store.committed, Chains(self.store.ledger())
        for stage in self.job.stages.values():
            for number, held in stage.slices.items():
                state = held.state
                if isinstance(state, TableSlice) and state.epoch == committed and self.store.whole:
                    history = chains.history(stage.plan.name, number, committed)
                    _believed(state, history, f"slice {number} of '{stage.plan.name}' on {self.name}")


def _believed(state: TableSlice, history: Sequence[Entry], whose: str) -> None:
    units, at = newest(history)
    epochs = np.repeat([one.epoch for one in history], [len(one.units) for one in history])[at]
    logged = dict(zip(units.tolist(), epochs.tolist(), strict=True))
    table = state.tables[-2]
    alive = np.flatnonzero(table.columns[ROWS][: table.rows] > 0)
    held = dict(zip(table.words[alive, 0].tolist(), table.columns[EPOCH][alive].tolist(), strict=True))
    invariant(held.keys() == logged.keys(), f"{whose} has {len(held)} units, and the log {len(logged)}")
    wrong = [unit for unit, epoch in held.items() if epoch > logged[unit]]
    invariant(not wrong, f"{whose}: the log does not have {len(wrong)} units from where it is believed to have them")


class EventualJob(ShippedJob):
    """``make_written`` is for planting bugs in what a commit names."""

    scenario = "eventual"
    store = EventualStore
    container = EventualContainer

    def __init__(
        self, seed: int, trace: bool = False, make_written: Callable[..., Written] = Written, **planted: Any
    ) -> None:
        self._make_written = make_written
        if seed % 2:
            planted = {"make_job": Files, **planted}
        super().__init__(seed, trace, **planted)

    def drawn_store(self) -> DiskStore:
        store = super().drawn_store()
        if isinstance(store, EventualStore):
            store.make_written = self._make_written
        return store

    def drawn_safety(self) -> tuple[str, Terms, dict[str, Any]]:
        return "Eventual", Terms(checks=CHECKS), {"from_copies": False}

    def drawn_mishaps(self) -> list[Callable[[], None]]:
        return [*super().drawn_mishaps(), self.tidy, self.tidy, self.corrupt]

    def run(self) -> str:
        """In the end all comes back from the store alone, whichever file of entries is bad."""
        told = super().run()
        store = self.job.store
        if not isinstance(store, EventualStore):
            raise TypeError("a store without units")
        try:
            self.comes_back(store, "all is there")
            store.tidy()
            for name in store.entries() if store.whole else ():
                whole = store.disk.get(name)
                store.disk.put(name, whole[:-1])
                self.comes_back(store, f"{name} is cut short")
                store.disk.put(name, whole)
        except (AssertionError, HoldfastError) as failure:
            self.fail(str(failure))
        return told

    def comes_back(self, store: EventualStore, why: str) -> None:
        self.world.note("store", f"a container that has nothing: {why}")
        fresh = EventualContainer(f"fresh, {why}", store)
        try:
            fresh.perform(
                Restore("fresh", Fence(store.owner, store.committed, 0), frozenset(range(SLICES)), store.committed, 0)
            )
            for number in range(SLICES):
                store.check_state(number, store.committed, fresh.held[number][store.committed], fresh.name)
        finally:
            fresh.close()

    def tidy(self) -> None:
        store = self.job.store
        if isinstance(store, EventualStore):
            self.world.note("store", f"is tidied: {len(store.tidy())} files")
