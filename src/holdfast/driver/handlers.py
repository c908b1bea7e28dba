"""What the shell does for the master in the background: everything that waits on containers and the store.

One method for each instruction; each returns what the master shall hear. Nothing is decided here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from holdfast import faults
from holdfast.driver.epochs import Tag
from holdfast.driver.history import History
from holdfast.driver.watermarks import Timekeeper
from holdfast.errors import FunctionError, StoreError
from holdfast.invariants import Impossible, invariant, some
from holdfast.launch.fleet import Fleet
from holdfast.log.janitor import Janitor
from holdfast.log.ledger import Ledger
from holdfast.log.pack import Pack, pack_name
from holdfast.log.records import FEED, Carried, Commit, Fence, Manifest, Prepare, SegmentRef, Taken
from holdfast.log.records import Routing as RoutingFile
from holdfast.log.segment import segment_name
from holdfast.master import events as ev
from holdfast.master import instructions as do
from holdfast.master.clock import EpochClock
from holdfast.master.readies import PATIENCE_SECONDS
from holdfast.spark.checkpoint import SparkNotes

INLINE_BYTES = 16 << 20
"""Of rows inside one prepare."""
WRITERS = 8
Sizes = Mapping[str, Mapping[str, Any]]
"""stage → changed, rows, counts"""


class Performer:
    def __init__(self, ledger: Ledger, incarnation: int, fleet: Callable[[], Fleet], history: History) -> None:
        self.ledger = ledger
        self.ledger_lock = threading.RLock()
        self.notes = SparkNotes(ledger)
        self._janitor = Janitor(ledger.store, ledger.section_name, incarnation, self.notes.settle)
        self._tidying = threading.Lock()
        self._cut = 0  # where the master has last allowed to cut the log
        self.incarnation = incarnation
        self.sinks: tuple[str, ...] = ()
        self.counters: dict[str, int] = {}  # as the last committed epoch left them
        self.dropped: frozenset[str] = frozenset()
        """Sinks that shall not get the epoch that was prepared for them."""
        self.time = Timekeeper(())
        self.clock = EpochClock()
        self.bandwidth: float | None = None
        """Bytes a second that each container may send as copies; None: as fast as it can."""
        self._fleet = fleet
        self._history = history
        self._prepares: dict[int, Prepare] = {}  # of the epoch in flight, by level
        self._oldest: dict[str, dict[int, tuple[int, int | None]]] = {}  # stage → slice → epoch, oldest open session
        self.slices = 0
        self.has_functions = False
        self._sinks_begun = 0  # the newest epoch of which a sink may have something

    # --- routing, prepare, commit -------------------------------------------------------------------------

    def store_routing(self, instruction: do.StoreRouting) -> ev.Event:
        routing = instruction.routing
        with self.ledger_lock:
            self.ledger.put_routing(RoutingFile(routing.version, tuple(owner or "" for owner in routing.table)))
        return ev.RoutingStored(instruction.id)

    def store_prepare(self, instruction: do.StorePrepare, routing: int) -> ev.Event:
        attachments: list[bytes] = []
        refs = self._refs(instruction, attachments)
        level = instruction.level
        if level == 1:
            steady = _steady()
            reading = self.clock.read(time.time_ns() // 1_000_000, steady)
            clock = reading.clock
            if reading.warning is not None:
                self._history.note("warning", reading.warning)
        else:  # an epoch has one clock
            clock = self.prepare_of(instruction.fence.epoch, 1).clock
        epoch = instruction.fence.epoch
        seen = (_tag_of(tag).times for tag in instruction.tags)
        times, before, after = self.time.advance(level, seen, lambda stage: self._began(stage, epoch))
        carried: Carried | None = None
        if level == 1:
            carried, files = self.notes.carry(instruction.ranges[FEED])
            carried = replace(carried, files={name: at + len(attachments) for name, at in carried.files.items()})
            attachments += files
        ours = Prepare(
            fence=instruction.fence,
            level=instruction.level,
            ranges=instruction.ranges,
            segments=refs,
            clock=clock,
            times=times,
            watermark_before=before,
            watermark_after=after,
            routing=routing,
            sinks=self.counters | {name: self.counters.get(name, -1) + 1 for name in self.sinks},
            spark=carried,
            attachments=tuple(attachments),
        )
        stored: Prepare | None = None
        try:
            with self.ledger_lock:
                stored = self.ledger.put_prepare(ours)
        finally:
            if level == 1 and (stored is None or stored.fence != ours.fence):
                self.notes.not_stored()
        self._prepares[stored.level] = stored
        self.time.take(stored)
        if level == 1:
            self.clock.take(stored.clock, steady)
        faults.place("driver", "after-prepare", stored.fence.epoch)
        content = ev.Prepared(stored.level, stored.fence, stored.ranges, self.given_to(stored))
        return ev.PrepareStored(instruction.id, content)

    def given_to(self, prepare: Prepare) -> tuple[str, ...]:
        """The sinks that the epoch goes to, whoever prepared it."""
        return tuple(name for name in prepare.given_to(self.counters) if name not in self.dropped)

    def _began(self, stage: str, epoch: int) -> int | None:
        """Since when the oldest session of a stage below is open. All slices have applied their level of the epoch by
        now, and each has said so with its answer, whoever owned it: what it says depends on its rows alone."""
        found = [began for of, began in self._oldest[stage].values() if of == epoch]
        invariant(len(found) == self.slices, f"{len(found)} of {self.slices} slices of '{stage}' told their oldest")
        return min((began for began in found if began is not None), default=None)

    def now(self) -> int:
        """What the clock of an epoch would be, µs."""
        return 1000 * self.clock.at(time.time_ns() // 1_000_000, _steady())

    def _refs(self, instruction: do.StorePrepare, attachments: list[bytes]) -> tuple[SegmentRef, ...]:
        """Rows that came inside a tag stay inside the prepare, as long as they are few in all: whoever applies the
        epoch is sent the prepare. What is more goes into segments of their own."""
        found, room = [], INLINE_BYTES
        apart: list[tuple[str, bytes]] = []
        for tag in map(_tag_of, instruction.tags):
            if not tag.rows:
                continue
            name, inline = tag.name, None
            if tag.inline is not None and len(tag.inline) <= room:
                inline = len(attachments)
                attachments.append(tag.inline)
                room -= len(tag.inline)
            elif tag.inline is not None:
                name = segment_name(instruction.fence, instruction.level, tag.partition, tag.task)
                apart.append((name, tag.inline))
            about = (tag.rows, tag.nbytes, tag.checksum, tag.partition, tag.task, inline, tag.input_rows, tag.partial)
            found.append(SegmentRef(name, *about))
        if apart:
            with ThreadPoolExecutor(
                WRITERS, "holdfast-segments"
            ) as pool:  # each is synced: one after the other is slow
                list(pool.map(lambda one: self.ledger.section.write(one[0], [one[1]]), apart))
        return tuple(found)

    def prepare_of(self, epoch: int, level: int) -> Prepare:
        known = self._prepares.get(level)
        if known is None or known.fence.epoch != epoch:
            with self.ledger_lock:
                known = self.ledger.get_prepare(epoch, level)
            known = some(known, f"epoch {epoch}.{level} is applied but not prepared")
            self._prepares[level] = known
        return known

    def mark_failed(self, epoch: int, error: FunctionError) -> None:
        with self.ledger_lock:
            self.ledger.mark_failed(Fence(self.incarnation, epoch, 0), error.what)

    def before_sinks(self, epoch: int) -> None:
        """From here on the epoch may be seen: nobody may finish it with other functions any more.

        Only functions can be mended, so only a job that has some pays for the mark.
        """
        if self.has_functions and self._sinks_begun != epoch:
            with self.ledger_lock:
                self.ledger.mark_applied(Fence(self.incarnation, epoch, 0))
            self._sinks_begun = epoch

    def note_taken(self, fence: Fence, sink: str) -> None:
        """A start after this one must not give the epoch to this sink again, though others still wait for it."""
        with self.ledger_lock:
            self.ledger.put_taken(Taken(fence, sink))

    def store_commit(self, instruction: do.StoreCommit) -> ev.Event:
        epoch = instruction.fence.epoch
        faults.place("driver", "after-sinks", epoch)
        with self.ledger_lock:
            stored = self.ledger.put_commit(Commit(instruction.fence, instruction.ranges))
        faults.place("driver", "after-commit", epoch)
        self.counters = dict(self.prepare_of(epoch, 1).sinks)
        return ev.CommitStored(instruction.id, stored.fence, stored.ranges)

    # --- slices -------------------------------------------------------------------------------------------

    def apply(self, instruction: do.Apply, committed: int) -> tuple[ev.Event, Sizes]:
        prepare = self.prepare_of(instruction.fence.epoch, instruction.level)
        # Containers hear of a commit with the next epoch: until then they only keep an undo set they need no more.
        header = {
            "slices": sorted(instruction.slices),
            "name": prepare.file,
            "committed": committed,
            "digests": sorted(instruction.digests),
        }
        answer, _ = self._fleet().call(instruction.container, "apply", header, prepare.to_bytes())
        faults.place("driver", "mid-apply", instruction.fence.epoch)
        for stage, figures in answer["stages"].items():
            known = self._oldest.setdefault(stage, {})
            for number, oldest in figures.get("oldest", {}).items():
                # The destination of a move may answer when the next epoch has begun.
                told = (instruction.fence.epoch, oldest)
                known[int(number)] = max(known.get(int(number), told), told, key=lambda one: one[0])
        digests = tuple((int(number), digest) for number, digest in answer.get("digests", {}).items())
        return ev.Applied(instruction.id, digests), answer["stages"]

    def undo(self, instruction: do.Undo) -> ev.Event:
        self._tell(instruction, "undo", epoch=instruction.fence.epoch)
        return ev.Undone(instruction.id)

    def activate(self, instruction: do.Activate) -> ev.Event:
        began = time.monotonic()
        figures = self._tell(instruction, "activate", epoch=instruction.epoch)
        self._history.note(
            "activated",
            f"{len(instruction.slices)} slices on {instruction.container} at epoch {instruction.epoch}: "
            f"{figures['bytes']:,} bytes of copies, {figures['replayed']:,} rows replayed",
            seconds=time.monotonic() - began,
            slices=len(instruction.slices),
            nbytes=figures["bytes"],
        )
        return ev.Activated(instruction.id)

    def restore(self, instruction: do.Restore) -> ev.Event:
        """From the newest checkpoint; from the one before it if a pack of the newest cannot be read."""
        began = time.monotonic()
        with self.ledger_lock:
            manifests = [
                manifest
                for manifest in self.ledger.manifests(self._history.corrupt)
                if manifest.epoch <= instruction.checkpoint
            ]
        failure: StoreError | None = None
        for manifest in [*reversed(manifests), None][:2]:  # None: from the beginning of the log, if it is still there
            try:
                figures = self._restore_from(instruction, manifest)
            except StoreError as error:
                self._history.corrupt(error)
                failure = failure or error
                continue
            self._history.note(
                "restored",
                f"{len(instruction.slices)} slices on {instruction.container} at epoch {instruction.epoch}: "
                f"{figures['loaded']:,} bytes loaded, {figures['replayed']:,} rows replayed",
                seconds=time.monotonic() - began,
                slices=len(instruction.slices),
                nbytes=figures["loaded"],
            )
            return ev.Restored(instruction.id)
        raise some(failure, "neither restored nor failed")

    def _restore_from(self, instruction: do.Restore, manifest: Manifest | None) -> dict[str, Any]:
        packs: dict[str, list[int]] = {}
        if manifest is not None:
            for number in sorted(instruction.slices):
                packs.setdefault(manifest.pack_of(number), []).append(number)
        checkpoint = manifest.epoch if manifest else 0
        return self._tell(instruction, "restore", epoch=instruction.epoch, checkpoint=checkpoint, packs=packs)

    # --- copies -------------------------------------------------------------------------------------------

    def send_copies(self, instruction: do.SendCopies) -> ev.Event:
        fleet = self._fleet()
        alive = set(fleet.alive())
        to = [
            {"container": peer, "location": fleet.address(peer).location, "slices": sorted(slices)}
            for peer, slices in instruction.to
            if peer in alive
        ]
        gone = frozenset(peer for peer, _ in instruction.to if peer not in alive)
        bandwidth = None if instruction.at_once else self.bandwidth
        answer = self._tell(instruction, "copy", epoch=instruction.epoch, to=to, bandwidth=bandwidth)
        held = tuple(
            (peer, int(number), version)
            for peer, versions in answer["held"].items()
            for number, version in versions.items()
        )
        for peer, reason in answer["failed"].items():
            self._history.note("copy failed", f"{instruction.container} to {peer}: {reason}")
        self._history.note(
            "sent" if instruction.moving else "copied",
            f"{answer['rows']:,} rows of {len(instruction.slices)} slices from {instruction.container} "
            f"to {', '.join(peer for peer, _ in instruction.to)} as of epoch {instruction.epoch}",
            seconds=answer["seconds"],
            slices=len(instruction.slices),
            nbytes=answer["bytes"],
        )
        return ev.CopiesSent(instruction.id, held, gone | frozenset(answer["failed"]))

    # --- pieces on the ring -------------------------------------------------------------------------------

    def save_shards(self, instruction: do.SaveShards) -> ev.Event:
        answer = self._tell(instruction, "save", epoch=instruction.epoch, bandwidth=self.bandwidth)
        for peer, reason in answer["failed"].items():
            self._history.note("save failed", f"{instruction.container} to {peer}: {reason}")
        copies = tuple((int(number), count) for number, count in answer["copies"].items())
        self._history.note(
            "saved",
            f"{answer['rows']:,} rows of {len(copies)} slices from {instruction.container} to the ring as of epoch "
            f"{instruction.epoch}: {min((count for _, count in copies), default=0)} copies of every piece",
            seconds=answer["seconds"],
            slices=len(copies),
            nbytes=answer["bytes"],
        )
        return ev.ShardsSaved(instruction.id, copies)

    def gather(self, instruction: do.Gather) -> ev.Event:
        answer = self._tell(instruction, "gather", lost=sorted(instruction.lost), seconds=PATIENCE_SECONDS)
        for figures in answer["figures"]:
            self._history.note(
                "gathered",
                f"{len(figures['slices'])} slices on {instruction.container} by {figures['structure']}: "
                f"{figures['bytes']:,} bytes from peers, {figures['replayed']:,} rows replayed",
                seconds=figures["seconds"],
                slices=len(figures["slices"]),
                nbytes=figures["bytes"],
            )
        ready = tuple((int(number), epoch) for number, epoch in answer["ready"].items())
        beyond = tuple((int(number), reason) for number, reason in answer["beyond"].items())
        return ev.ReadySeen(instruction.id, ready, beyond)

    def demote(self, instruction: do.Demote) -> ev.Event:
        self._tell(instruction, "demote", epoch=instruction.epoch)
        return ev.Demoted(instruction.id)

    def drop(self, instruction: do.Forget | do.DropCopies) -> ev.Event:
        if isinstance(instruction, do.Forget):
            self._tell(instruction, "forget")
        self._tell(instruction, "drop")
        return ev.Dropped(instruction.id)

    # --- checkpoints --------------------------------------------------------------------------------------

    def write_checkpoint(self, instruction: do.WriteCheckpoint) -> ev.Event:
        began = time.monotonic()
        fence = Fence(self.incarnation, instruction.epoch, instruction.fence.attempt)
        name = pack_name(fence, instruction.label)
        figures = self._tell(instruction, "checkpoint", epoch=instruction.epoch, pack=name)
        self._history.note(
            "written",
            f"{name} with {len(instruction.slices)} slices",
            seconds=time.monotonic() - began,
            slices=len(instruction.slices),
            nbytes=figures["bytes"],
        )
        return ev.CheckpointWritten(instruction.id, name)

    def verify_packs(self, instruction: do.VerifyPacks) -> ev.Event:
        files = [str(pack.file) for pack in instruction.packs]
        if instruction.by is None:
            for file in files:
                Pack.open(self.ledger.section, file).verify()
        else:
            self._fleet().call(instruction.by, "verify", {"packs": files})
        return ev.PacksVerified(instruction.id)

    def store_manifest(self, instruction: do.StoreManifest) -> ev.Event:
        packs = [str(pack.file) for pack in instruction.packs]
        where = {number: at for at, pack in enumerate(instruction.packs) for number in pack.slices}
        manifest = Manifest(
            instruction.epoch,
            instruction.fence,
            tuple(packs),
            tuple(where[number] for number in range(len(where))),
            verified_by="another container or the driver",
        )
        with self.ledger_lock:
            self.ledger.put_manifest(manifest)
        self._history.note("checkpoint", f"epoch {instruction.epoch}, {len(packs)} packs, verified")
        return ev.ManifestStored(instruction.id)

    def cut_log(self, epoch: int) -> None:
        self._cut = max(self._cut, epoch)
        self.tidy()

    def tidy(self) -> None:
        """Delete what nobody needs any more; what is left over when its time is up goes the next time."""
        with self._tidying:
            self._janitor.round(self._cut)

    def newest_owner(self) -> int:
        with self.ledger_lock:
            newest = self.ledger.newest_owner()
        return newest.incarnation if newest is not None else 0

    def _tell(self, instruction: do.ToContainer, action: str, **header: Any) -> dict[str, Any]:
        header["slices"] = sorted(instruction.slices)
        return self._fleet().call(instruction.container, action, header)[0]


def _steady() -> int:
    """Milliseconds that have really passed since some moment, those included in which the machine slept."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)) // 1_000_000


def _tag_of(tag: object) -> Tag:
    if not isinstance(tag, Tag):
        raise Impossible(f"{tag!r} is no Tag")
    return tag
