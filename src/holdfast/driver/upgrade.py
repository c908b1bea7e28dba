"""A job that comes back with another graph: its state is brought into the new shape before anything runs.

The log is in terms of the graph that wrote it, so it must not be replayed with another. Hence, on the driver, before
the first container starts: bring every slice to the last committed epoch with the stages as they were, convert it
column by column, write all of it as one checkpoint, and put that checkpoint and the new graph into the store as one
file. Until that file is there nothing has happened and the old job can go on; after it only the new one can.

An epoch that is prepared and not committed can only be finished in the terms in which it began, with one exception: a
function raised in it, or a result overflowed. Then the same file says that the new functions, or nulls, finish it (the
design has a file of its own for that, beside the ``prepare``; but two files are not written at once, and functions are
in the graph's).

One process does it, some slices at a time. Doing it in containers would be faster for a large state, but every
container would have to run two graphs at once; a change of the graph is rare, and a restart anyway.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast import faults
from holdfast.driver.former_state import Packed, Replayed
from holdfast.driver.reshaped import Reshaped
from holdfast.driver.units import logged
from holdfast.errors import FencedError, StoreError
from holdfast.invariants import some
from holdfast.log import blocks
from holdfast.log.ledger import Ledger
from holdfast.log.pack import Pack, PackWriter, SliceState, pack_name
from holdfast.log.past import Past
from holdfast.log.records import SPARK, Fence, GraphFile, JobFile, Manifest
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.plan.changes import Comparison, compare, mapping, mends
from holdfast.plan.compile import Notes
from holdfast.plan.fingerprint import Fingerprint
from holdfast.plan.numbers import positions
from holdfast.plan.stage_names import by_number, mistakable, renamed, times_renamed
from holdfast.spark.rebase import rebase

if TYPE_CHECKING:
    from holdfast.spark.stream import JobPlan

LOG = logging.getLogger("holdfast")
BYTES_AT_ONCE = 512 << 20
"""About how much state is in memory at a time."""


def history(ledger: Ledger, plan: JobPlan) -> list[Sequence[StagePlan]]:
    """The stages of every graph of the job that is still known, and the highest number that an input has had. A store
    from before stages were written down has those of now."""
    graphs = ledger.graphs()
    found = [graphs.stages(version) for version in range(graphs.newest + 1) if graphs.knows(version)]
    made: list[Sequence[StagePlan]]
    made = [[StagePlan.from_dict(one) for one in stages] if stages else positions(plan.stages) for stages in found]
    highest = Past.of(graphs).input
    return made if highest < 0 else [[StagePlan("", 1, (InputPlan(1, highest),), plan.stages[0].operator)], *made]


def look(
    ledger: Ledger, file: JobFile, plan: JobPlan, drop: Sequence[str] = (), *, units: bool = False
) -> Upgrade | None:
    """What must be done before the job can run with this plan. What cannot be is refused before anything is written.
    ``drop`` has stages of the store that the job is known to have no more. ``units``: from here on the log is to have
    the units of the state."""
    graph = ledger.graph()
    stored, fingerprint = (graph.stages, graph.graph) if graph else (file.stages, file.graph)
    known = Fingerprint.from_dict(fingerprint)
    if not stored:
        return None  # a store from before stages were written down: its fingerprint is the same
    before, now = (
        [StagePlan.from_dict(one) for one in stored],
        [StagePlan.from_dict(one.to_dict()) for one in plan.stages],
    )
    asked = plan.fingerprint()
    names = by_number(before, now)
    found = compare([renamed(one, names) for one in before], now, known.sources, asked.sources)
    if names and (found.refusals or found.changes):
        raise _not_as_it_was(file.name, names, found)
    made = graph.made_names if graph else file.made_names
    if not names and (unclear := mistakable(before, now, made, plan.made_names, drop)):
        raise _unclear(file.name, *unclear)
    if found.refusals:
        raise StoreError(
            f"Job {file.name!r} is not what it was when its store {ledger.store.uri} was last written, and its state "
            "cannot become what it is now:\n" + "\n".join(f"    {line}" for line in found.refusals),
            safe="Nothing was changed.",
            todo="Start the job as it was; give a stage that means something else another name; or use a new store.",
        )
    upgrade = Upgrade(ledger, file, before, now, asked, found, names, plan.made_names, plan.notes, units=units)
    if not (found.converts or names or upgrade.moves_sources or upgrade.turns):
        return upgrade if _noted_anew(ledger, file, plan.notes) else None
    upgrade.refuse_shared()
    upgrade.standing()
    return upgrade


def _noted_anew(ledger: Ledger, file: JobFile, notes: Notes) -> bool:
    """Whether the store is to keep other notes of a graph that is the same. Not while an epoch is under way: it is in
    the terms of the graph that there is."""
    names, updates = ledger.graphs().notes()
    if notes == Notes(names, tuple(updates)):
        return False
    commit, prepared = ledger.last_committed(), ledger.last_prepared()
    if prepared is None or prepared[0] <= (commit.fence.epoch if commit else 0):
        return True
    if any(one["kind"] == "update" and one not in notes.updates for one in updates):
        raise StoreError(
            f"Epoch {prepared[0]} of {file.name!r} was begun with changes that were made while it ran, and is not "
            "committed.",
            safe="Nothing was changed.",
            todo="Start once with those changes, so that it is finished; then drop them.",
        )
    return False


def refuse_rival(ledger: Ledger, seen: GraphFile | None, job: str) -> None:
    """For the owner of a job: the graph must still be the one that its plan was compared with."""
    if ledger.graph(again=True) != seen:
        raise _overtaken(job)


def _overtaken(job: str) -> FencedError:
    return FencedError(
        f"Another driver was started for job {job!r} while this one looked at its graph.",
        safe="Nothing was changed by this one.",
        todo="Start again, one driver only.",
    )


def _not_as_it_was(job: str, names: Mapping[str, str], found: Comparison) -> StoreError:
    called = ", ".join(f"'{old}' would be '{new}'" for old, new in names.items())
    return StoreError(
        f"The store of job {job!r} calls stages by their order, and this version of Holdfast by what they do. They are "
        f"matched by their order once ({called}), for which the job must be what it was:\n"
        + "\n".join(f"    {line}" for line in (*found.refusals, *found.changes)),
        safe="Nothing was changed.",
        todo="Start the job once as it was, with names for its stages or without; then change it.",
    )


def _unclear(job: str, old: str, new: str) -> StoreError:
    return StoreError(
        f"Stage '{old}', which nobody has named, is in the store of job {job!r} and not in the job any more; and stage "
        f"'{new}' is new. Whether the one has become the other, names cannot tell.",
        safe="Nothing was changed.",
        todo=f"If '{new}' is what '{old}' was, call it that: key_by(…, name='{old}'), and it keeps its state. If it is "
        f"not, start(drop=['{old}']) lets that state go.",
    )


class Upgrade:
    """One change of a job's graph, found possible. ``perform`` does it."""

    def __init__(
        self,
        ledger: Ledger,
        file: JobFile,
        stored: Sequence[StagePlan],
        asked: Sequence[StagePlan],
        fingerprint: Fingerprint,
        found: Comparison,
        names: Mapping[str, str] | None = None,
        made_names: Sequence[str] = (),
        notes: Notes | None = None,
        *,
        units: bool = False,
    ) -> None:
        self._names = dict(names or {})
        self._made_names = made_names
        self._notes = notes or Notes()
        self.changes = found.changes + tuple(
            f"stage '{old}' is called '{new}' from now on" for old, new in self._names.items()
        )
        self._ledger = ledger
        self._file = file
        self._stored = {self._names.get(plan.name, plan.name): plan for plan in stored}
        self._asked = asked
        self._fingerprint = fingerprint
        former = ledger.graph()
        self._had_units, self._units = logged(ledger), units
        self._converts = found.converts or bool(self._names) or self.turns
        if self.turns:
            what = "has the units of the state from here on" if units else "has no units of the state from here on"
            self.changes += (f"the log {what}",)
        self._alike = not found.converts  # but for names
        known = Fingerprint.from_dict(former.graph if former else file.graph)
        # The source at each place of Spark's plan, as it was and as it is.
        self._places = known.sources, fingerprint.sources
        if self.moves_sources and not self.changes and set(known.sources) == set(fingerprint.sources):
            self.changes = ("Spark reads each source once, for all who read it",)
        self._stages: dict[str, Reshaped] = {}
        self._shared = [*known.shared, *fingerprint.shared]

    @property
    def moves_sources(self) -> bool:
        """Other stages and stateless sinks read the sources than before."""
        before, now = self._places
        return bool(before != now)

    @property
    def turns(self) -> bool:
        """The log is to have units from here on and had none, or the other way round."""
        return self._had_units is not None and self._had_units != self._units

    def standing(self) -> tuple[int, int]:
        """The last committed epoch, and how many levels of the next one are prepared and mended by this change. One
        that has begun and is not mended can only be finished as it began: then nothing can be changed yet."""
        commit, prepared = self._ledger.last_committed(), self._ledger.last_prepared()
        committed = commit.fence.epoch if commit else 0
        begun = blocks.standing(self._ledger).begun
        if begun is not None and self.moves_sources:
            raise StoreError(
                f"Job {self._file.name!r} has other stages or sinks over its sources than before, but block "
                f"{begun.number} was begun before that, and is not there yet: sinks may have its rows.",
                safe="Nothing was changed.",
                todo=f"Start once more with the job as it was, so that block {begun.number} is finished.",
            )
        if prepared is None or prepared[0] <= committed:
            return committed, 0
        epoch, level = prepared
        failed = self._ledger.failed(epoch)
        if (self._names or self.turns) and self._alike and not self.moves_sources:
            return committed, level
        functions_alone = not self.moves_sources and mends(list(self._stored.values()), self._asked, level)
        if failed is not None and functions_alone:
            return committed, level
        raise StoreError(
            f"Job {self._file.name!r} has changed, but epoch {epoch} was begun before that and is not committed: what "
            "it is has been fixed in terms of the job as it was."
            + (f" It failed: {failed.text}" if failed is not None else ""),
            safe="Nothing was changed.",
            todo=f"Start once more with the job as it was, so that epoch {epoch} is finished."
            if failed is None
            else "Start with nothing changed but the function that failed, and its states, or on_overflow='null': that "
            f"finishes epoch {epoch} (stages below level {level} have done their part of it). Then change the rest.",
        )

    def refuse_shared(self) -> None:
        """Spark numbers what its readers note by reader, and sources that are one DataFrame have one between them."""
        if self.moves_sources and self._shared:
            one, other = self._shared[0]
            raise StoreError(
                f"Job {self._file.name!r} has other stages or sinks over its sources than before, and '{one}' and "
                f"'{other}' are made of the same streaming DataFrame: which of Spark's notes belong to which source "
                "cannot be told.",
                safe="Nothing was changed.",
                todo="Start the job with the stages and sinks over sources that it had; or, in a new store, read that "
                "DataFrame once and branch the stream.",
            )

    def perform(self, incarnation: int) -> GraphFile:
        """Convert the state and put the new graph in its place. For the owner of the job only: it must be the one that
        nobody else prepares epochs for."""
        began, (epoch, mended) = time.monotonic(), self.standing()
        former, graphs = self._ledger.graph(), self._ledger.graphs()
        version = self._ledger.next_graph()
        follows = former.version if former is not None else 0  # those in between never counted
        spark = self._ledger.spark
        if self.moves_sources:
            spark = f"{SPARK}-{version}-{incarnation}"
            if self._ledger.section.exists(f"{self._ledger.spark}/metadata"):
                batch = blocks.standing(self._ledger).batch
                done = batch.batch_id if batch else -1  # where reading begins may be noted before the first batch
                rebase(self._ledger.section, self._ledger.spark, spark, *self._places, done)
        graph = GraphFile(
            version=version,
            epoch=epoch,
            incarnation=incarnation,
            graph=self._fingerprint.to_dict(),
            stages=[plan.to_dict() for plan in self._asked],
            changes=list(self.changes),
            packs=[],
            slices=[],
            created=time.time_ns() // 1_000_000,
            mends=mended,
            spark=spark,
            made_names=list(self._made_names),
            renamed=self._names | times_renamed(list(self._stored.values()), self._asked, self._names),
            former=follows if follows != version - 1 else None,
            names=dict(self._notes.names),
            updates=[dict(one) for one in self._notes.updates],
            past=Past.of(graphs).to_dict() if any(one.past for one in graphs.later) else {},
        )
        if not self._converts:  # log and checkpoints are in the terms of both
            kept = (former.epoch, former.packs, former.slices, former.mends) if former else (0, [], [], 0)
            begun = former.begun if former is not None and former.packs else None
            graph = replace(graph, epoch=kept[0], packs=kept[1], slices=kept[2], mends=kept[3], packed=begun, kept=True)
            graph = replace(graph, units=former.units if former is not None else {})
        elif epoch:
            manifest = self._checkpoint(incarnation, epoch, version)
            graph = replace(graph, packs=list(manifest.packs), slices=list(manifest.slices), units=self._living())
        faults.place("driver", "before-graph", epoch)
        owner = self._ledger.newest_owner()
        if owner is None or owner.incarnation != incarnation:
            raise _overtaken(self._file.name)
        self._ledger.put_graph(graph)
        if mended and not self._names:
            self.changes += (f"epoch {epoch + 1}, which had failed, is finished by the job as it is now",)
        faults.place("driver", "after-graph", epoch)
        LOG.info("the graph was changed at epoch %d in %.1f s", epoch, time.monotonic() - began)
        return graph

    # --- the checkpoint that the new graph begins with ------------------------------------------------------------

    def _checkpoint(self, incarnation: int, epoch: int, version: int) -> Manifest:
        """From the newest checkpoint of the graph there was; from the one before it if that cannot be read."""
        manifests = self._ledger.manifests(lambda error: LOG.warning("%s", error))
        if self._had_units:  # what comes back from the log needs no other checkpoint than it knows
            return self._converted(None, Fence(incarnation, epoch, 0), f"graph{version}")
        failure: StoreError | None = None
        for manifest in [*reversed(manifests), None][:2]:
            try:
                if manifest is not None and manifest.epoch == epoch and self._fits() and not self._units:
                    return manifest
                return self._converted(manifest, Fence(incarnation, epoch, 0), f"graph{version}")
            except StoreError as error:
                LOG.warning("%s", error)
                failure = failure or error
        raise some(failure, "neither read nor failed")

    def _living(self) -> dict[str, list[int]]:
        return {name: stage.living for name, stage in self._stages.items()} if self._units else {}

    def _fits(self) -> bool:
        """The state is in the new shape already: only functions, or places in the log, are others."""
        plans = {plan.name: plan for plan in self._asked}
        return (
            not self._names
            and plans.keys() == self._stored.keys()
            and not any(mapping(self._stored[name].operator, plan.operator) for name, plan in plans.items())
        )

    def _converted(self, manifest: Manifest | None, fence: Fence, label: str) -> Manifest:
        store, slices = self._ledger.section, self._file.slices
        name = pack_name(fence, label)
        with ExitStack() as stack:
            source: Packed | Replayed
            if manifest is not None and manifest.epoch == fence.epoch:
                source = Packed(self._ledger, manifest, list(self._stored.values()))
            else:
                had = self._had_units is True
                source = Replayed(self._ledger, self._file, self._replayed(), manifest, fence.epoch, units=had)
                stack.callback(source.close)
            nbytes = PackWriter().write(store, name, self._slices(source, fence.epoch))
        faults.place("driver", "after-pack", fence.epoch)
        Pack.open(store, name).verify()
        LOG.info("%s is written and verified: %d slices, %d bytes", name, slices, nbytes)
        return Manifest(fence.epoch, fence, (name,), (0,) * slices, "the driver that changed the graph")

    def _replayed(self) -> list[StagePlan]:
        """The stages whose state stays, and those that they look into, even if these go."""
        before = {plan.name: plan for plan in self._stored.values()}
        wanted = [self._stored[plan.name].name for plan in self._asked if plan.name in self._stored]
        for name in wanted:  # grows while it is walked
            wanted += [peer for peer in before[name].peers if peer not in wanted]
        return [plan for name, plan in before.items() if name in wanted]

    def _slices(self, source: Packed | Replayed, epoch: int) -> Iterator[SliceState]:
        """Every table of every slice in the new shape, some slices at a time."""
        slices = self._file.slices
        stages = [Reshaped(self._stored.get(plan.name), plan, epoch, self._units) for plan in self._asked]
        self._stages = {plan.name: stage for plan, stage in zip(self._asked, stages, strict=True)}
        size = max(1, slices // max(1, -(-source.nbytes // BYTES_AT_ONCE)))
        for first in range(0, slices, size):
            group = range(first, min(slices, first + size))
            found = source.copies(group, [table for stage in stages for table in stage.sources])
            for number in group:
                for stage in stages:
                    made = dict(stage.converted(found, number))
                    stage.count(number, list(made.values()))
                    for table, copy in made.items():
                        yield SliceState(table, number, epoch, copy)
            faults.place("driver", "mid-change", epoch)
            LOG.info("the graph changes: %d of %d slices are converted", group.stop, slices)
