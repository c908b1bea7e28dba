"""The shipped job whose graph changes while it runs: stages come, go, are emptied, and read by another filter.

A driver makes a change as ``driver.live_changes`` does: at rest it looks whose the job is, puts ``graph/<n>`` and goes
on by it; the next prepare names it, and then it is in force for ever. Drivers die in between, or are replaced; the
power goes; containers that were started under one graph hear of others by prepares and copies; slices are brought back
across changes, by checkpoints, copies and the log. The oracle is plain Python over the rows of the blocks, by the
version that each epoch's stored prepare names. A container is judged by the stages that it has: they must be those of
the version that it says it has, and each must hold what the oracle says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from holdfast.container.job import HostedJob
from holdfast.container.staging import Staging
from holdfast.errors import FencedError, FullDiskError, StoreError
from holdfast.invariants import invariant, some
from holdfast.log.ledger import Ledger
from holdfast.log.past import Past
from holdfast.log.records import Fence, GraphFile, JobFile, Prepare
from holdfast.master.events import GraphChanged
from holdfast.master.feed import FeedStarted
from holdfast.master.pump import PumpHeld, PumpLet, TickWanted
from holdfast.operators.stage import InputPlan, StagePlan
from simulator.job_driver import Driver
from simulator.shipped import COUNTS, SLICES, VALUES, Rows, ShippedContainer, ShippedJob, ShippedStore, digest

FIRST = (COUNTS, replace(VALUES, inputs=(InputPlan(1, 1),)))
"""As they are at first, each with an input of its own: filters may differ."""
MOST_STAGES = 5
TRY_SECONDS = 0.05
TRIES = 100
Held = Mapping[int, tuple[int, int, frozenset[int]]]
"""Key → count, sum and values."""


@dataclass(frozen=True)
class Terms:
    """A version of the graph: its stages, and the least value that the filter of each lets pass."""

    plans: tuple[StagePlan, ...] = FIRST
    least: Mapping[str, int] = field(default_factory=lambda: {plan.name: 0 for plan in FIRST})

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(plan.name for plan in self.plans)


class Seen(int):
    """A digest of what was seen, with the stages that it is of."""

    stages: frozenset[str]


@dataclass
class ChangingStore(ShippedStore):
    """``made_by`` has what each driver goes on by: its own ledger, which knows what it has put."""

    made_by: dict[int, Ledger] = field(default_factory=dict)
    terms: dict[int, Terms] = field(default_factory=lambda: {0: Terms()})
    turns: dict[int, frozenset[str]] = field(default_factory=dict)
    """Driver → stages that its next epoch empties."""
    epochs: dict[int, tuple[int, frozenset[str]]] = field(default_factory=dict)
    """Epoch → the version that its prepare names, and the stages that it empties."""
    used: int = 2
    """Numbers of inputs."""
    _held: list[dict[str, Held]] = field(default_factory=lambda: [{}])

    def opened(self) -> None:
        stages = [plan.to_dict() for plan in FIRST]
        names = {plan.name: plan.name for plan in FIRST}
        self.ledger().open_or_create_job(JobFile("j", "job", {}, SLICES, 0, stages=stages, names=names))

    def feed_started(self, incarnation: int) -> FeedStarted:
        self.made_by[incarnation] = ledger = self.ledger()
        named = max([0, *(version for version, _ in self.epochs.values())])
        invariant(ledger.version >= named, f"a start has graph {ledger.version}, and {named} was in force")
        return super().feed_started(incarnation)

    def ledger_of(self, fence: Fence) -> Ledger:
        return self.made_by[fence.incarnation]

    # --- a change -----------------------------------------------------------------------------------------

    def change(self, incarnation: int, drawn: Callable[[Terms], tuple[Terms, frozenset[str]]]) -> None:
        """Put what is drawn of the graph that this driver has; ``FencedError`` if another was first."""
        ledger = self.made_by[incarnation]
        former = ledger.version
        terms, emptied = drawn(self.terms[former])
        version = ledger.next_graph()
        stages = [plan.to_dict() for plan in terms.plans]
        graph = GraphFile(version, 0, incarnation, {}, stages, [], [], [], 0, live=True, former=former)
        names, past = {plan.name: plan.name for plan in terms.plans}, Past.of(ledger.graphs()).to_dict()
        ledger.put_graph(replace(graph, names=names, past=past))
        self.terms[version] = terms
        self.turns[incarnation] = (self.turns.get(incarnation, frozenset()) | emptied) & terms.names

    def passed(self, rows: Rows, fence: Fence) -> dict[int, Rows]:
        terms = self.terms[self.ledger_of(fence).version]
        found = {
            plan.inputs[0].number: tuple(row for row in rows if row[1] >= terms.least[plan.name])
            for plan in terms.plans
        }
        return {number: mine for number, mine in found.items() if mine}

    def put_content(self, ours: Prepare) -> Prepare:
        incarnation = ours.fence.incarnation
        emptied = self.turns.get(incarnation, frozenset())
        try:
            stored = super().put_content(replace(ours, resets=tuple(sorted(emptied))))
        except FencedError as error:  # the epoch is its successor's: it fails here, and this one will hear why
            raise StoreError(str(error)) from error
        found = stored.graph, frozenset(stored.resets)
        invariant(self.epochs.setdefault(stored.fence.epoch, found) == found, "two graphs of an epoch")
        if stored.fence == ours.fence:
            self.turns[incarnation] = frozenset()
        return stored

    def terms_of(self, epoch: int) -> int | None:
        return self.epochs[epoch][0]

    # --- the oracle ---------------------------------------------------------------------------------------

    def held(self, epoch: int) -> dict[str, Held]:
        while len(self._held) <= epoch:
            at = len(self._held)
            version, emptied = self.epochs[at]
            terms, before, now = self.terms[version], self._held[-1], dict[str, Held]()
            for name in terms.names:
                table = {} if name in emptied else dict(before.get(name, {}))
                for key, value in self._rows_of(at):
                    if value >= terms.least[name]:
                        count, total, values = table.get(key, (0, 0, frozenset()))
                        table[key] = (count + 1, total + value, values | {value})
                now[name] = table
            self._held.append(now)
        return self._held[epoch]

    def oracle(self, slice_: int, position: int) -> int:
        return digest(self._told(slice_, self.held(position)))

    def output(self, slice_: int, epoch: int) -> int:
        terms, now = self.terms[self.epochs[epoch][0]], self.held(epoch)
        touched = {
            name: {key for key, value in self._rows_of(epoch) if value >= terms.least[name]} for name in terms.names
        }
        return digest(
            self._told(slice_, {name: {key: now[name][key] for key in keys} for name, keys in touched.items()})
        )

    def check_state(self, slice_: int, position: int, state: int, whose: str) -> None:
        """Of the stages that were seen: a stage that is gone goes at once."""
        if isinstance(state, Seen):
            there = {name: table for name, table in self.held(position).items() if name in state.stages}
            right = digest(self._told(slice_, there))
            invariant(state == right, f"{whose}: slice {slice_} is wrong at position {position}")
        else:
            super().check_state(slice_, position, state, whose)

    @staticmethod
    def _told(slice_: int, held: Mapping[str, Held]) -> Iterator[tuple[str, int, int, int]]:
        for name, table in held.items():
            for key, (count, total, values) in table.items():
                if key % SLICES == slice_:
                    yield (name, key, count, total) if name.startswith("counts") else (name, key, len(values), 0)


class ChangingContainer(ShippedContainer):
    def hosted(self, store: ShippedStore, make_job: Callable[..., HostedJob]) -> HostedJob:
        """Under the graph of the driver that starts it, which no prepare need have named yet."""
        if not isinstance(store, ChangingStore):
            raise TypeError("graphs change in a store that has them")
        version = store.made_by[store.hosting].version
        plans = store.terms[version].plans
        return make_job("j", plans, SLICES, store.ledger(), self._threads, Staging(0), graph=version)

    def _digest(self, slice_: int, epoch: int, mode: Any) -> int | None:
        rows = self.shown(slice_, epoch, mode)
        if rows is None:
            return None
        store: Any = self.store
        seen, found = frozenset(self.job.stages), Seen(digest(rows))
        fits = seen == store.terms[self.job.graph].names
        invariant(fits, f"{self.name} has other stages than graph {self.job.graph}")
        named = store.epochs[epoch][0] if epoch else 0
        invariant(self.job.graph >= named, f"{self.name} has graph {self.job.graph}, and epoch {epoch} is of {named}")
        found.stages = seen
        return found


class ChangingJob(ShippedJob):
    scenario = "changes"
    store, container = ChangingStore, ChangingContainer

    def __init__(self, *arguments: Any, **planted: Any) -> None:
        self.changes = 0
        super().__init__(*arguments, **planted)

    def drawn_store(self) -> ChangingStore:
        store = super().drawn_store()
        if not isinstance(store, ChangingStore):
            raise TypeError("graphs change in a store that has them")
        store.opened()
        return store

    def drawn_mishaps(self) -> list[Callable[[], None]]:
        return [*super().drawn_mishaps(), *[self.change] * 4]

    def change(self) -> None:
        driver = self.job.newest
        if driver is not None:
            driver.spark.held += 1
            driver.later(0.0, self._try, driver, TRIES)

    def _try(self, driver: Driver, tries: int) -> None:
        """As soon as nothing is taken in or prepared: it looks, and a moment later it puts."""
        if self._rests(driver) and driver.still_ours():
            driver.tell(PumpHeld())
            driver.later(self.job.write_seconds(), self._put, driver)
        elif tries and not (driver.deposed or driver.spark.failed):
            driver.later(TRY_SECONDS, self._try, driver, tries - 1)
        else:
            driver.spark.held -= 1

    def _put(self, driver: Driver) -> None:
        store: Any = self.job.store
        if self._rests(driver):
            try:
                store.change(driver.incarnation, self._drawn)
            except FencedError:
                driver.crash("another driver has changed the graph")
                return
            except FullDiskError:
                pass  # whoever asked for it hears so, and nothing was changed
            else:
                self.changes += 1
                self.world.note(driver.name, f"has put graph {store.made_by[driver.incarnation].version}")
                driver.tell(GraphChanged(1, store.sinks))
        driver.spark.held -= 1
        driver.tell(PumpLet())
        driver.tell(TickWanted())

    @staticmethod
    def _rests(driver: Driver) -> bool:
        master, pump = driver.master, driver.pump
        still = driver.feed.idle and pump.idle and not pump.unread and master.resting
        return still and not pump.stuck and not driver.spark.failed

    def _drawn(self, terms: Terms) -> tuple[Terms, frozenset[str]]:
        """One change; and which stages the next epoch empties."""
        store: Any = self.job.store
        chance, plans, least = self.chance, list(terms.plans), dict(terms.least)
        one = chance.choice(plans).name
        match chance.choice(["add", "add", "remove", "filter", "empty"]):
            case "add" if len(plans) < MOST_STAGES:
                kind = chance.choice([COUNTS, VALUES])
                made = replace(kind, name=f"{kind.name}{store.used}", inputs=(InputPlan(1, store.used),))
                store.used += 1
                plans.append(made)
                least[made.name] = chance.randrange(10)
            case "remove" if len(plans) > 1:
                plans = [plan for plan in plans if plan.name != one]
                del least[one]
            case "empty":
                return terms, frozenset([one])
            case _:
                least[one] = chance.randrange(10)
        return Terms(tuple(plans), least), frozenset()

    def run(self) -> str:
        said = super().run()
        return f"{said}, {self.changes} changes, {len(some(self.job.store, 'a store').terms)} graphs"  # type: ignore[attr-defined]
