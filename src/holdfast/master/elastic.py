"""Who lives, who owns what, where copies are, what is on its way: the part that grows, shrinks and heals.

Like the whole master it keeps facts and derives from them what to do. The rest of the master says at every turn how
far the job is (``Moment``); nothing here waits for an epoch and no epoch waits for anything here, except that
ownership of a slice that lives changes hands between two epochs only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.log.records import Fence
from holdfast.master.balance import level
from holdfast.master.copies import Copies, Sendings
from holdfast.master.events import (
    CopiesSent,
    LoadsSeen,
    MoveWanted,
    ReadySeen,
    ScaleWanted,
    ShardsSaved,
    Started,
)
from holdfast.master.instructions import (
    Activate,
    Apply,
    Demote,
    DropCopies,
    EndContainer,
    Forget,
    Gather,
    SaveShards,
    SendCopies,
    TellPeople,
    ToContainer,
    performer,
)
from holdfast.master.membership import Membership
from holdfast.master.moves import Move, Moves, Phase, grouped, slices_of
from holdfast.master.operations import Operations
from holdfast.master.placement import activate
from holdfast.master.progress import Position, Progress
from holdfast.master.readies import Readies
from holdfast.master.requests import Asking
from holdfast.master.saves import Saving

HOT = 1.5
HOT_SECONDS = 0.1
"""A container whose slices take that much of an epoch, and so much more than the mean, has some taken away."""
AT_ONCE = 32
"""So many slices of one owner are copied for moves at a time: the first are there while the last still wait."""
AGAIN_SECONDS = 1.0
IDLE_SECONDS = 3.0
"""So long without an epoch, and a slice in dual mode changes hands without having been compared in one."""


@dataclass(frozen=True)
class Moment:
    """How far the job is."""

    committed: int
    fence: Fence
    whole: bool
    """Every slice has an owner that has brought it to the committed epoch."""
    between: bool
    """No level of the epoch in flight is prepared: owners may change."""
    busy: bool
    """Spark waits for an epoch."""
    writing: frozenset[int]
    """Slices whose owners are writing a checkpoint of them."""


class Elastic:
    def __init__(self, job: Started, progress: Progress, asking: Asking) -> None:
        self.members = Membership(job.containers, asking)
        self.copies = Copies(job.slices, job.safety.backups)
        self.moves = Moves()
        self.operations = Operations()
        self.saving = Saving(job.safety)
        self._readies = Readies(asking)
        self._by_ring = job.by_ring
        self._safety = job.safety
        self._from_copies = job.from_copies
        self._progress = progress
        self._asking = asking
        self._adopted = False
        self._orphans: frozenset[int] = frozenset()
        """Slices that the ring is bringing back."""
        self._uneven = False
        self._by_hand = False
        self._stopping = False
        self._loads: Mapping[int, float] | None = None
        self._now = 0.0
        self._quiet_since = 0.0
        self._untidy: list[tuple[float, Forget | DropCopies]] = []
        """What could not be dropped, and when: nothing new may come there before it is."""
        self._updated: dict[str, tuple[int, float]] = {}
        """When an owner's copies were last brought up to date: epoch, time."""
        self._moves_next: set[str] = set()
        """Owners whose last sending was an update."""

    # ----------------------------------------------------------------------------------------------- events

    def clock(self, at: float) -> None:
        self._now = max(self._now, at)

    def join(self, container: str, host: str) -> None:
        if self.members.join(container, host):
            self._uneven = self.members.gathered

    def lose(self, container: str) -> bool:
        """Forget a container and all it held; whether it lived."""
        lived = self._part_with(container)
        self._uneven = self._uneven or lived
        return lived

    def scale(self, event: ScaleWanted) -> None:
        before = self.members.wanted
        self.members.scale(event.containers)
        self._by_hand, self._stopping = False, event.stopping
        self._uneven = self.members.gathered
        if before != event.containers:
            self.operations.begin("rescale", f"from {before} to {event.containers} containers")

    def move(self, event: MoveWanted) -> None:
        if event.to not in self.members.hosts or event.to in self.members.leaving:
            self._asking.ask(TellPeople("move", f"there is no container '{event.to}' to move slices to"))
            return
        self._by_hand = True
        moves = dict.fromkeys(event.slices, event.to)
        self.operations.begin("move", f"{len(moves)} slices to {event.to}", self._plan(moves, event.stopping))

    def loads(self, event: LoadsSeen) -> None:
        """Hot slices are spread, but not for the sake of noise: the busiest container must have much more to do."""
        loads = dict(event.loads)
        held = self._progress.held()
        busiest = max((sum(loads.get(slice_, 0.0) for slice_ in slices) for slices in held.values()), default=0.0)
        mean = sum(loads.values()) / max(1, len(self.members.staying))
        if self.members.gathered and not self._by_hand and busiest > max(HOT_SECONDS, HOT * mean):
            self._loads = loads

    # ---------------------------------------------------------------------------------------------- answers

    def activated(self, instruction: Activate) -> None:
        for move in self.moves.with_task(instruction.id):
            move.task, move.phase, move.since = None, Phase.DUAL, self._now
            move.position = self._progress.at(instruction.epoch)
        self.copies.used(instruction.container, instruction.slices)

    def applied(self, instruction: Apply, position: Position, digests: Mapping[int, int]) -> None:
        for move in self.moves.with_task(instruction.id):
            move.task, move.position = None, position
        for slice_, digest in digests.items():
            move_ = self.moves.of.get(slice_)
            if move_ is None or move_.phase is not Phase.DUAL:
                continue
            if unlike := move_.compare(instruction.container, position, digest):
                self._abort(
                    move_,
                    instruction.fence,
                    f"slice {slice_} put out {unlike[0]:08x} on {move_.source} and {unlike[1]:08x} on {move_.to} in "
                    f"epoch {instruction.fence.epoch}: it stays on {move_.source}",
                )

    def failed(self, instruction: ToContainer) -> None:
        """An instruction to a destination, or about copies, came to nothing."""
        match instruction:
            case Activate(container=container, slices=slices):
                self.copies.used(container, slices)
                self._begin_again(self.moves.with_task(instruction.id), instruction.fence)
            case Apply():
                self._begin_again(self.moves.with_task(instruction.id), instruction.fence)
            case Demote(container=container, slices=slices, fence=fence):
                self._asking.ask(Forget(container, fence, slices))
            case Forget() | DropCopies():
                self._untidy.append((self._now, instruction))
            case SaveShards():
                self.saving.failed(instruction)

    def ready(self, instruction: Gather, answer: ReadySeen) -> None:
        """A slice that the ring has brought back is a copy like any other, there to be made active."""
        self._readies.seen(answer)
        if instruction.container in self.members.hosts:
            for slice_, epoch in answer.ready:
                if self._progress.owners[slice_] != instruction.container:
                    self.copies.took(instruction.container, slice_, epoch)

    def saved(self, instruction: SaveShards, answer: ShardsSaved) -> None:
        self.saving.saved(instruction, answer)

    def sent(self, instruction: SendCopies, answer: CopiesSent) -> None:
        late: defaultdict[str, set[int]] = defaultdict(set)
        for peer, slice_, version in answer.held:
            move = self.moves.of.get(slice_)
            active = self._progress.owners[slice_] == peer or (move and move.to == peer and move.phase != Phase.COPY)
            if active:  # it came too late: the slice itself is there
                late[peer].add(slice_)
            elif peer in self.members.hosts:
                self.copies.took(peer, slice_, version)
        for peer, slices in late.items():
            self._asking.ask(DropCopies(peer, instruction.fence, frozenset(slices)))
        self.copies.refused(instruction.container, answer.failed)
        refused = [
            move
            for move in self.moves.of.values()
            if move.source == instruction.container and move.to in answer.failed and move.phase is Phase.COPY
        ]
        self._begin_again(refused, instruction.fence)

    def demoted(self, instruction: Demote) -> None:
        if instruction.container in self.members.hosts:
            for slice_ in instruction.slices:
                if self._progress.owners[slice_] != instruction.container:
                    self.copies.took(instruction.container, slice_, instruction.epoch)

    # --------------------------------------------------------------------------------------- orphans come home

    def adopt(self, committed: int, fence: Fence) -> bool:
        """Give every slice without an owner to whoever is nearest to having it; whether owners changed by that."""
        progress, before = self._progress, self._progress.owners
        orphans = progress.orphans()
        waits = self._by_ring and self._adopted and committed > 0
        new = frozenset(orphans) - self._orphans
        if self._adopted and new:
            self.operations.begin("recovery", f"{len(new)} slices lost their container", new)
        self._adopted = True
        for slice_ in orphans:
            move = self.moves.of.get(slice_)
            if move is not None and move.phase is not Phase.COPY:  # the destination was on its way to it anyway
                progress.give(slice_, move.to, move.position, move.task)
                del self.moves.of[slice_]
        takers = self.members.staying or self.members.hosts
        if self._from_copies:
            able = self.members.hosts if self._by_ring else takers
            for slice_, holder in activate(progress.orphans(), self.copies.held, able).items():
                progress.give(slice_, holder)
        lost, rest = self.members.lost, progress.orphans() if waits else ()
        self._orphans = self._readies.awaited(rest, self.members.hosts, lost, fence, self._now)
        progress.assign(self.members.hosts, takers, self._orphans)
        return progress.owners != before

    def gather(self, *, whole: bool, busy: bool) -> None:
        calm = not busy or self.operations.running("rescale")
        if self.members.gather(self._progress.held(), whole=whole, calm=calm):
            self._uneven = True

    def advance(self, moment: Moment) -> bool:
        """Whether owners changed."""
        if moment.busy:
            self._quiet_since = self._now
        for at, instruction in list(self._untidy):
            if self._now - at >= AGAIN_SECONDS:
                self._untidy.remove((at, instruction))
                self._asking.ask(instruction)
        changed = self._switch(moment)
        self._level(moment)
        self._rebuild(moment)
        self._plan_copies(moment)
        self._send_copies(moment)
        self._save_shards(moment)
        self._end_leaving(moment)
        behind = self._progress.short_of(self._progress.at(moment.committed))
        self.operations.advance(behind, self.moves, settled=self.settled)
        return changed

    def unsettled(self, container: str) -> set[int]:
        """Slices of which this container is just dropping, putting away or using a copy: no other may come there."""
        waiting = [instruction for _, instruction in self._untidy]
        return {
            slice_
            for one in [*self._asking.pending.values(), *waiting]
            if isinstance(one, Forget | DropCopies | Demote | Activate) and one.container == container
            for slice_ in one.slices
        }

    @property
    def settled(self) -> bool:
        """Nothing is moving, coming or leaving."""
        members = self.members
        return not (self.moves or members.leaving or members.coming or self._uneven or members.short)

    def begin_again_past(self, position: Position, fence: Fence) -> None:
        """An epoch is taken back: destinations that applied some of it start over."""
        self._begin_again([move for move in self.moves.of.values() if move.position > position], fence)

    def shadows(self, first: Position, end: Position) -> dict[tuple[str, Position], frozenset[int]]:
        """Slices in dual mode at a position in [first, end), by destination and position."""
        found: defaultdict[tuple[str, Position], set[int]] = defaultdict(set)
        for slice_, move in self.moves.of.items():
            if move.phase is Phase.DUAL and move.task is None and first <= move.position < end:
                found[move.to, move.position].add(slice_)
        return {key: frozenset(found[key]) for key in sorted(found)}

    def begin(self, instruction: Activate | Apply) -> None:
        for slice_ in instruction.slices:
            self.moves.of[slice_].task = instruction.id

    def _switch(self, moment: Moment) -> bool:
        progress = self._progress
        here = progress.at(moment.committed)
        if not moment.between:
            return False

        def ready(move: Move) -> bool:
            idle = self._now - max(self._quiet_since, move.since) >= IDLE_SECONDS
            return (
                move.phase is Phase.DUAL
                and move.task is None
                and move.position == here
                and (move.proven or move.stopping or idle)
                and move.slice not in moment.writing
                and progress.rests(move.slice, here)
            )

        moves = [move for move in self.moves.of.values() if ready(move)]
        for move in moves:
            progress.give(move.slice, move.to, here)
            del self.moves.of[move.slice]
        for source, gone in grouped(moves, lambda move: move.source).items():
            kept = source not in self.members.leaving
            self._asking.ask(
                Demote(source, moment.fence, slices_of(gone), moment.committed)
                if kept
                else Forget(source, moment.fence, slices_of(gone))
            )
        return bool(moves)

    def _level(self, moment: Moment) -> None:
        uneven = self._uneven or self._loads is not None
        if not (uneven and moment.whole) or self.moves or self.members.coming or self.members.short:
            return
        loads = None if self._uneven else self._loads
        self._uneven, self._loads = False, None
        wanted = level(self._progress.owners, self.members.staying, loads, self.copies.held)
        planned = self._plan(wanted, self._stopping)
        if planned and not self.operations.running("rescale"):
            self.operations.begin("balance", f"{len(planned)} slices change their container")
        self._stopping = False

    def _plan(self, wanted: Mapping[int, str], stopping: bool) -> frozenset[int]:
        planned = set()
        for slice_, to in sorted(wanted.items()):
            source = self._progress.owners[slice_]
            if source is not None and source != to and slice_ not in self.moves.of:
                self.moves.of[slice_] = Move(slice_, source, to, stopping)
                planned.add(slice_)
        return frozenset(planned)

    def _rebuild(self, moment: Moment) -> None:
        """Destinations that have a copy make it active; those that fell behind in dual mode catch up."""
        here = self._progress.at(moment.committed)
        busy = {one.container for one in self._asking.pending.values() if isinstance(one, Activate)}
        ready: list[Move] = []
        for move in self.moves.of.values():
            if move.not_before > self._now:
                continue
            copied = move.to in self.copies.held[move.slice] or moment.committed == 0
            behind = move.task is None and move.position < here
            if (move.phase is Phase.COPY and copied) or (move.phase is Phase.DUAL and behind):
                move.phase = Phase.REBUILD
            free = move.to not in busy and move.slice not in self.unsettled(move.to)
            if move.phase is Phase.REBUILD and move.task is None and free:
                ready.append(move)
        for to, moves in grouped(ready, lambda move: move.to).items():
            self.begin(self._asking.ask(Activate(to, moment.fence, slices_of(moves), moment.committed)))

    def _plan_copies(self, moment: Moment) -> None:
        if moment.whole:
            owners, hosts = self._progress.owners, self.members.staying
            surplus = self.copies.plan(owners, hosts, self.moves.of.keys(), level=self.settled)
            for holder, slices in surplus.items():
                if holder in self.members.hosts:
                    self._asking.ask(DropCopies(holder, moment.fence, slices))

    def _send_copies(self, moment: Moment) -> None:
        """One sending at a time for each owner: what is due to be brought up to date, or what moves, or is missing.

        Updates and moves take turns: where one update takes so long that the next is due by then, nothing would move.
        """
        if moment.committed == 0 or not moment.whole:
            return
        sending = {one.container for one in self._asking.pending.values() if isinstance(one, SendCopies)}
        for owner, slices in self._progress.held().items():
            if owner in sending:
                continue
            epoch, at = self._updated.setdefault(owner, (0, self._now))
            update = self._safety.every.passed(moment.committed - epoch, self._now - at)
            moving = self._moving_from(owner)
            if moving and (not update or owner in self._moves_next):
                due = moving
                self._moves_next.discard(owner)
            else:
                due = self.copies.due(slices, moment.committed, update=update)
                if update:
                    self._updated[owner] = (moment.committed, self._now)
                    self._moves_next.add(owner)
            sendings = {peer: due[peer] - self.unsettled(peer) - self.moves.active_on(peer) for peer in sorted(due)}
            to = tuple((peer, frozenset(numbers)) for peer, numbers in sendings.items() if numbers)
            if to:
                every = frozenset().union(*(numbers for _, numbers in to))
                self._asking.ask(
                    SendCopies(
                        owner,
                        moment.fence,
                        every,
                        moment.committed,
                        to,
                        moving=due is moving,
                        at_once=self.moves.stopping,
                    )
                )

    def _save_shards(self, moment: Moment) -> None:
        """One saving at a time for each owner."""
        if moment.committed == 0 or not moment.whole:
            return
        busy = {one.container for one in self._asking.pending.values() if isinstance(one, SaveShards)}
        for owner, slices in self._progress.held().items():
            hosts = frozenset(self.members.hosts)
            if owner not in busy and self.saving.begin(owner, slices, hosts, moment.committed, self._now):
                self._asking.ask(SaveShards(owner, moment.fence, slices, moment.committed))

    def _moving_from(self, owner: str) -> Sendings:
        """Slices of this owner that wait for a copy at their destination; not too many at once."""
        moves = [
            move
            for move in self.moves.of.values()
            if move.source == owner and move.phase is Phase.COPY and move.not_before <= self._now
        ]
        found: Sendings = defaultdict(set)
        for move in moves if self.moves.stopping else moves[:AT_ONCE]:
            if move.to not in self.copies.held[move.slice]:
                found[move.to].add(move.slice)
        return found

    def _end_leaving(self, moment: Moment) -> None:
        """A container may go when it owns nothing and every copy that shall be is somewhere else."""
        if not moment.whole or (moment.committed and self.copies.missing()):
            return
        for container in sorted(self.members.leaving):
            told = any(performer(one) == container for one in self._asking.pending.values())
            if not (told or container in self._progress.owners or self.moves.touches(container)):
                self._part_with(container)
                self._asking.ask(EndContainer(container))

    def _part_with(self, container: str) -> bool:
        lived = self.members.lose(container)
        self._updated.pop(container, None)
        self._moves_next.discard(container)
        self.saving.lose(container)
        self._untidy = [(at, one) for at, one in self._untidy if one.container != container]
        self.copies.lose(container)
        for slice_, move in list(self.moves.of.items()):
            if move.to == container or (move.source == container and move.phase is Phase.COPY):
                del self.moves.of[slice_]
                self._uneven = True
        return lived

    def _abort(self, move: Move, fence: Fence, why: str) -> None:
        del self.moves.of[move.slice]
        self._asking.ask(Forget(move.to, fence, frozenset([move.slice])))
        self.copies.used(move.to, [move.slice])
        self._asking.ask(TellPeople("move", why))

    def _begin_again(self, moves: list[Move], fence: Fence) -> None:
        for to, those in grouped(moves, lambda move: move.to).items():
            self._asking.ask(Forget(to, fence, slices_of(those)))
            self.copies.used(to, slices_of(those))
            for move in those:
                move.begin_again(self._now + AGAIN_SECONDS)
