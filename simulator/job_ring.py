"""The ring of a driver's containers in a simulated job: pieces are saved on it, and lost slices come back by it.

Placing (``safety.shards``), dealing (``recovery.dealing``) and gathering (``recovery.gathering``) are the code that
ships, over the streams of ``recovering_world``; what a container makes of a loss is played as ``container/healing.py``
does it. The overlay itself is not played a second time: with as many containers as a leaf set has room for, everyone
knows everyone, and hears of a death at once and of silence after ``PATIENCE_SECONDS``. A stream that has begun
does not notice a cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, StoreError
from holdfast.invariants import Impossible
from holdfast.master.events import Answer, ReadySeen, ShardsSaved
from holdfast.master.instructions import Gather, SaveShards
from holdfast.master.readies import PATIENCE_SECONDS as READY_SECONDS
from holdfast.recovery.heirs import deal
from holdfast.recovery.policies import Auto, Structure
from holdfast.safety.shards import Cut, PieceName, Version, least_copies
from simulator.recovering_world import Gatherer, RecoveringWorld

if TYPE_CHECKING:
    from simulator.job_container import ContainerHost
    from simulator.job_world import JobWorld

TICK_SECONDS = 0.5
PATIENCE_SECONDS = 5.0
"""As ``container.ring.RingTerms``: ten ticks."""
JOB = "job"

Done = Callable[[Answer | HoldfastError], None]


class JobRing(RecoveringWorld):
    """``cut`` and ``policy``: how slices are cut, and by which structure they come back."""

    def __init__(self, job: JobWorld, cut: Cut, policy: Structure | Auto) -> None:
        super().__init__(0, 0, world=job.world, speed=job.links.default)
        self.fabric.links = job.links
        self.job, self.cut, self.policy = job, cut, policy
        self.healers: dict[str, Healer] = {}
        self.states: dict[tuple[int, int], int] = {}
        """Slice and epoch → what all its pieces together are."""
        self.savers: dict[tuple[str, int], tuple[int, str]] = {}
        """Holder and slice → the newest epoch of which it has pieces, and whose they are."""

    def join(self, host: ContainerHost) -> None:
        self.add(host.name, host.machine)
        healer = self.healers[host.name] = Healer(self, host)
        healer.tick()

    def die(self, name: str) -> None:
        if name in self.healers:
            del self.healers[name]
            self.kill(name)
            self.repair(name)

    def hears(self, here: str, peer: str) -> bool:
        host = self.job.containers.get(peer)
        return host is not None and host.answers and self.job.network.connected(here, peer)

    def around(self, here: str, dead: Collection[str]) -> list[str]:
        return [name for name in self.healers if name not in dead and (name == here or self.hears(here, name))]

    # -------------------------------------------------------------------------------------------------- saving

    def save_slices(self, owner: ContainerHost, told: SaveShards, done: Done) -> None:
        """Each holder gets its pieces of all slices in one transfer; what counts is who has taken them."""
        pinned = {
            number: state
            for number in sorted(told.slices)
            if (state := owner.model.state(number, told.epoch)) is not None
        }
        sendings: dict[str, list[PieceName]] = {}
        for number, state in pinned.items():
            self.states[number, told.epoch] = state
            for piece, names in self.placed(JOB, number, owner.name, self.cut).items():
                for name in names:
                    sendings.setdefault(name, []).append(piece)
        taken: dict[PieceName, list[str]] = {}
        open_ = dict.fromkeys(sendings)

        def ended(holder: str, came: bool) -> None:
            open_.pop(holder, None)
            for piece in sendings[holder] if came else ():
                taken.setdefault(piece, []).append(holder)
            if not open_:
                finish()

        def finish() -> None:
            copies = {number: least_copies(self.cut.pieces(number), taken) for number in pinned}
            for number, count in copies.items():
                if 0 < count == min(self.cut.n, len(self.healers) - 1):
                    self._release(number, Version(told.epoch))
            done(ShardsSaved(told.id, tuple(copies.items())))

        if not sendings:
            owner.later(0.01, finish)
        for holder, pieces in sendings.items():
            size = self.job.costs.slice * len(pieces) / len(self.cut.pieces(0))
            self._send(owner, holder, pieces, Version(told.epoch), size, ended)

    def _send(
        self,
        owner: ContainerHost,
        holder: str,
        pieces: list[PieceName],
        version: Version,
        size: float,
        ended: Callable[[str, bool], None],
    ) -> None:
        def arrived() -> None:
            came = owner.alive and self.hears(owner.name, holder) and holder in self.healers
            if came:
                for piece in pieces:
                    self.put({piece: (holder,)}, version, int(size / len(pieces)))
                    before = self.savers.get((holder, piece.slice), (0, ""))
                    self.savers[holder, piece.slice] = max(before, (version.epoch, owner.name))
                self.healers[holder].overtaken(owner.name, {piece.slice for piece in pieces})
            owner.later(0.0 if came else 2.0, ended, holder, came)

        self.job.links.transfer(owner.name, holder, size, arrived, lambda: owner.later(0.0, ended, holder, False))

    def _release(self, number: int, version: Version) -> None:
        """Nobody needs an older one any more."""
        for held in self.held.values():
            for piece, its in [key for key in held if key[0].slice == number and key[1] < version]:
                del held[piece, its]

    def lacking(self, slices: Iterable[int]) -> str:
        """A slice of which no version is whole."""
        wanted = min(self.cut.n, len(self.healers) - 1)
        for number in slices:
            pieces = self.cut.pieces(number)
            holders: dict[Version, dict[PieceName, list[str]]] = {}
            for name, held in self.held.items():
                for piece, version in held:
                    if piece.slice == number:
                        holders.setdefault(version, {}).setdefault(piece, []).append(name)
            best = max((least_copies(pieces, taken) for taken in holders.values()), default=0)
            if best < wanted:
                return f"the pieces of slice {number} are on {best} containers: {wanted} are due"
        return ""

    # -------------------------------------------------------------------------------------------------- healing

    def owned_by(self, dead: Collection[str], among: Collection[str]) -> set[int]:
        """Slices whose newest pieces came from the dead, by what these say."""
        return {number for (holder, number), (_, saver) in self.savers.items() if holder in among and saver in dead}


class Healer:
    """One container's part when others are lost."""

    def __init__(self, ring: JobRing, host: ContainerHost) -> None:
        self._ring, self._host = ring, host
        self._dead: set[str] = set()
        self._silent: dict[str, float] = {}
        self._busy: set[int] = set()
        self._beyond: dict[int, str] = {}
        self._made: set[int] = set()
        self._rounds = 0
        self._asked: list[tuple[Gather, Done]] = []

    def tick(self) -> None:
        """Heartbeats among leaves: a death is refused at once, silence counts after a while."""
        ring, here = self._ring, self._host.name
        lost = []
        for peer in [name for name in ring.hosts if name != here]:
            if ring.hears(here, peer):
                self._silent[peer] = 0.0
                self._dead.discard(peer)
            else:
                self._silent[peer] = self._silent.get(peer, 0.0) + TICK_SECONDS
                lost += [peer] if self._silent[peer] >= PATIENCE_SECONDS else []
        gone = [peer for peer in self._silent if peer not in ring.hosts]
        for peer in gone:
            del self._silent[peer]
        self.lost([*lost, *gone])
        self._host.later(TICK_SECONDS, self.tick)

    def lost(self, containers: Iterable[str]) -> None:
        new = set(containers) - self._dead
        if new:
            self._dead |= new
            self._beyond.clear()
            self._rounds += 1
            self._host.later(0.01, self._heal, frozenset(self._dead), frozenset[int]())

    def ready(self, told: Gather, done: Done) -> None:
        """Answered when this container's share is done, or patience is over."""
        self.lost(told.lost)
        self._asked.append((told, done))
        self._host.later(READY_SECONDS, self._answer, told, done)
        self._settle()

    def overtaken(self, owner: str, slices: Collection[int]) -> None:
        """Their owner lives, and saves them: what was made ready here for its loss is of no use."""
        self._dead.discard(owner)
        for number in self._made.intersection(slices):
            self._made.discard(number)
            self._host.model.copies.pop(number, None)

    def _settle(self) -> None:
        if not self._rounds:
            for told, done in list(self._asked):
                self._answer(told, done)

    def _answer(self, told: Gather, done: Done) -> None:
        if (told, done) in self._asked:
            self._asked.remove((told, done))
            ready = self._host.model.versions(told.slices)
            beyond = {number: why for number, why in self._beyond.items() if number in told.slices}
            done(ReadySeen(told.id, tuple(ready.items()), tuple(sorted(beyond.items()))))

    def _heal(self, told: frozenset[str], tried: frozenset[int]) -> None:
        ring, here = self._ring, self._host.name
        dead = self._dead | told
        around = ring.around(here, dead)
        orphans = ring.owned_by(dead, around)
        models = [ring.job.containers[name].model for name in around]
        there = {number for model in models for number in [*model.held, *model.versions(orphans)]}
        dealt = deal(JOB, orphans, around)
        done = there | self._busy | self._beyond.keys() | tried
        mine = [number for number, name in dealt.items() if name == here and number not in done]
        if not mine:
            self._rounds -= 1
            self._settle()
            return
        self._busy.update(mine)
        replacing = set(dealt.values()) - {here}
        gatherer = ring.recover(here, mine, ring.cut, ring.policy, JOB, replacing=replacing)
        gatherer.then = lambda one: self._gathered(one, mine, told, tried)
        if gatherer.ended is not None:
            gatherer.then(gatherer)

    def _gathered(self, one: Gatherer, mine: list[int], told: frozenset[str], tried: frozenset[int]) -> None:
        self._ring.gatherers.remove(one)
        if one.wrong:
            raise Impossible(one.wrong[0])
        for number, fate in one.fates.items():
            if isinstance(fate, Version):
                self._keep(number, fate.epoch)
            else:
                self._beyond[number] = fate
        self._busy.difference_update(mine)
        self._host.later(0.01, self._heal, told, tried.union(mine))

    def _keep(self, number: int, epoch: int) -> None:
        """Brought to the last epoch that the store says is committed, it rests as a copy of that epoch."""
        model, store = self._host.model, self._host.model.store
        newest = max(epoch, store.committed)
        try:
            levels = store.levels
            state = store.replayed(number, self._ring.states[number, epoch], epoch * levels, newest * levels)
        except StoreError as error:
            self._beyond[number] = error.what
            return
        if number not in model.held:
            model.take_copy(number, newest, state)
            self._made.add(number)
