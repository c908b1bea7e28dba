"""Who owns what, where copies are, what is on its way: the part that grows, shrinks and heals.

Like the whole master it keeps facts and derives from them what to do. The rest of the master says at every turn how
far the job is (``Moment``); nothing here waits for an epoch and no epoch waits for anything here, except that
ownership of a slice that lives changes hands between two epochs only. Who lives, comes and goes is the business of the
``membership``, of which a master is one user.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from holdfast.log.records import Fence
from holdfast.master.balance import level
from holdfast.master.copies import Copies
from holdfast.master.drops import Drops
from holdfast.master.events import (
    ContainerJoined,
    ContainerLost,
    CopiesSent,
    DigestsTaken,
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
    Forget,
    Gather,
    SaveShards,
    SendCopies,
    TakeDigests,
    TellPeople,
    ToContainer,
    performer,
)
from holdfast.master.membership import Membership, Released, Standing
from holdfast.master.migration import Migration
from holdfast.master.moves import Moves, Phase
from holdfast.master.operations import Operations
from holdfast.master.placement import activate
from holdfast.master.progress import Moment, Position, Progress
from holdfast.master.readies import Readies
from holdfast.master.requests import Asking
from holdfast.master.saves import Saving
from holdfast.master.upkeep import Upkeep

HOT = 1.5
HOT_SECONDS = 0.1
"""A container whose slices take that much of an epoch, and so much more than the mean, has some taken away."""
USER = "main"
"""What the membership knows a job by that has its containers for itself."""


class Elastic:
    def __init__(self, job: Started, members: Membership, progress: Progress, asking: Asking, user: str = USER) -> None:
        self.members = members
        self.copies = Copies(job.slices, job.safety.backups)
        self.drops = Drops(asking)
        self.migration = Migration(progress, self.copies, self.drops, asking)
        self.upkeep = Upkeep(job.safety, progress, members, self.copies, self.migration, self.drops, asking)
        self.operations = Operations()
        self._readies = Readies(asking)
        self._by_ring = job.by_ring
        self._from_copies = job.from_copies
        self._progress = progress
        self._asking = asking
        self._user = user
        self._adopted = False
        self._orphans: frozenset[int] = frozenset()
        """Slices that the ring is bringing back."""
        self._uneven = False
        self._by_hand = False
        self._loads: Mapping[int, float] | None = None
        self._now = 0.0

    @property
    def moves(self) -> Moves:
        return self.migration.moves

    @property
    def saving(self) -> Saving:
        return self.upkeep.saving

    # ----------------------------------------------------------------------------------------------- events

    def clock(self, at: float) -> None:
        self._now = max(self._now, at)

    def join(self, event: ContainerJoined) -> None:
        known = event.container in self.members.hosts
        self._asking.ask_all(self.members.handle(event))
        if not known and event.container in self.members.hosts:
            self._uneven = self.members.gathered

    def lose(self, event: ContainerLost) -> bool:
        """Forget a container and all it held; whether it lived."""
        lived = event.container in self.members.hosts
        self._asking.ask_all(self.members.handle(event))
        self._part_with(event.container)
        self._uneven = self._uneven or lived
        return lived

    def scale(self, event: ScaleWanted) -> None:
        before = self.members.wanted
        self._asking.ask_all(self.members.handle(event))
        self._by_hand = False
        self._uneven = self.members.gathered
        if before != event.containers:
            self.operations.begin("rescale", f"from {before} to {event.containers} containers")

    def move(self, event: MoveWanted) -> None:
        if event.to not in self.members.hosts or event.to in self.members.leaving:
            self._asking.ask(TellPeople("move", f"there is no container '{event.to}' to move slices to"))
            return
        self._by_hand = True
        moves = dict.fromkeys(event.slices, event.to)
        planned = self.migration.plan(moves)
        self.operations.begin("move", f"{len(moves)} slices to {event.to}", planned)

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
        self.migration.activated(instruction, self._now)
        self.copies.used(instruction.container, instruction.slices)

    def applied(self, instruction: Apply, position: Position, digests: Mapping[int, int]) -> None:
        self.migration.applied(instruction, position, digests)

    def failed(self, instruction: ToContainer) -> None:
        """An instruction to a destination, or about copies, came to nothing."""
        match instruction:
            case Activate(container=container, slices=slices):
                self.copies.used(container, slices)
                self.migration.failed(instruction, self._now)
            case Apply():
                self.migration.failed(instruction, self._now)
            case Demote(container=container, slices=slices, fence=fence):
                self._asking.ask(Forget(container, fence, slices))
            case Forget() | DropCopies():
                self.drops.failed(instruction, self._now)
            case TakeDigests():
                self.migration.digested(instruction, None, self._now)
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
        self.migration.refused(instruction.container, frozenset(answer.failed), instruction.fence, self._now)

    def digested(self, instruction: TakeDigests, answer: DigestsTaken) -> None:
        self.migration.digested(instruction, answer, self._now)

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
        self.migration.take_over(orphans)
        takers = self.members.staying or self.members.hosts
        if self._from_copies:
            able = self.members.hosts if self._by_ring else takers
            for slice_, holder in activate(progress.orphans(), self.copies.held, able).items():
                progress.give(slice_, holder)
        lost, rest = self.members.lost, progress.orphans() if waits else ()
        self._orphans = self._readies.awaited(rest, self.members.hosts, lost, fence, self._now)
        progress.assign(self.members.hosts, takers, self._orphans)
        return progress.owners != before

    def stand(self, *, whole: bool, busy: bool) -> None:
        """Say how the job stands, and hear who is to come and to leave."""
        held = {container: len(slices) for container, slices in self._progress.held().items()}
        calm, before = not busy or self.operations.running("rescale"), self.members.leaving.copy()
        self._asking.ask_all(self.members.handle(Standing(self._user, held, whole, calm)))
        if self.members.leaving - before:
            self._uneven = True

    def advance(self, moment: Moment) -> bool:
        """Whether owners changed."""
        self.drops.advance(moment.now)
        self.migration.prove(moment)
        changed = self.migration.switch(moment, self.members.leaving)
        self._level(moment)
        self.migration.rebuild(moment)
        self.upkeep.advance(moment, settled=self.settled)
        self._release(moment)
        behind = self._progress.short_of(self._progress.at(moment.committed))
        self.operations.advance(behind, self.moves, settled=self.settled)
        return changed

    def begin_again_past(self, position: Position, fence: Fence) -> None:
        """An epoch is taken back: destinations that applied some of it start over."""
        self.migration.begin_again_past(position, fence, self._now)

    @property
    def settled(self) -> bool:
        """Nothing is moving, coming or leaving."""
        return self.members.settled and not (self.moves or self._uneven)

    def _level(self, moment: Moment) -> None:
        uneven = self._uneven or self._loads is not None
        if not (uneven and moment.whole) or self.moves or self.members.coming or self.members.short:
            return
        loads = None if self._uneven else self._loads
        self._uneven, self._loads = False, None
        wanted = level(self._progress.owners, self.members.staying, loads, self.copies.held)
        planned = self.migration.plan(wanted)
        if planned and not self.operations.running("rescale"):
            self.operations.begin("balance", f"{len(planned)} slices change their container")

    def _release(self, moment: Moment) -> None:
        """A container may go when it owns nothing and every copy that shall be is somewhere else."""
        free = frozenset[str]()
        if self.members.leaving and moment.whole and not (moment.committed and self.copies.missing()):
            told = {performer(one) for one in self._asking.pending.values()}
            needed = told.union(self._progress.owners)
            free = frozenset(one for one in self.members.leaving if one not in needed and not self.moves.touches(one))
        before = set(self.members.hosts)
        self._asking.ask_all(self.members.handle(Released(self._user, free)))
        for container in before - self.members.hosts.keys():
            self._part_with(container)

    def _part_with(self, container: str) -> None:
        self.upkeep.lose(container)
        self.drops.lose(container)
        self.copies.lose(container)
        if self.migration.lose(container):
            self._uneven = True
