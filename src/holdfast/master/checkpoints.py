"""One checkpoint of all slices to the store, from the first pack to the cut of the log.

Written behind the epochs that follow, one at a time. A checkpoint that meets any trouble, the loss of a
writer before its pack is there included, is given up rather than mended: nothing depends on it, and the next
one is due before long anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from holdfast.invariants import invariant
from holdfast.log.records import Fence
from holdfast.master.events import Pack
from holdfast.master.instructions import CutLog, Instruction, StoreManifest, VerifyPacks, WriteCheckpoint
from holdfast.safety.intervals import Interval

AGAIN_SECONDS = 3.0


class Checkpointing:
    def __init__(self, every: Interval | None, newest: int, slices: int, before: int = 0) -> None:
        self.newest = newest
        """Epoch of the newest complete, verified one; 0 if there is none."""
        self._before = before
        self._wanted: int | None = None
        self._every = every
        self._slices = slices
        self._begun = newest
        self._begun_at: float | None = None
        self._not_before = 0.0
        self.running = False
        self._awaited = 0
        self._packs: list[Pack] = []

    @property
    def wanted(self) -> bool:
        """Somebody needs one as soon as there is something to write."""
        return self._wanted is not None

    def want(self, committed: int) -> None:
        """One of that epoch or a later one: an older one that is being written now will not do."""
        self._wanted = committed

    def due(self, committed: int, now: float) -> bool:
        if self._begun_at is None:
            self._begun_at = now
        if self.running or (self._every is None and not self.wanted):
            return False
        if self.wanted or self._every is None:
            return committed > self.newest and now >= self._not_before
        return committed > self._begun and self._every.passed(committed - self._begun, now - self._begun_at)

    def other_than(self, tried: Collection[int]) -> int | None:
        """The newest complete one that was not tried, which may be newer than those that were: it was perhaps completed
        meanwhile, and the log below it cut. 0 while there were not two: the log from its beginning, which is there for
        as long as that is so. None if there is nothing else."""
        return max((one for one in (self.newest, self._before) if one not in tried), default=None)

    def begin(self, epoch: int, now: float, fence: Fence, held: dict[str, frozenset[int]]) -> list[Instruction]:
        invariant(self.due(epoch, now), f"a checkpoint at {epoch} while one of {self._begun} runs")
        self._begun, self._begun_at, self.running = epoch, now, True
        self._awaited, self._packs = len(held), []
        return [WriteCheckpoint(container, fence, slices, epoch) for container, slices in held.items()]

    def written(self, done: WriteCheckpoint, file: object, living: Iterable[str]) -> list[Instruction]:
        self._packs.append(Pack(done.container, done.slices, file))
        self._awaited -= 1
        if self._awaited:
            return []
        covered = sorted(slice_ for pack in self._packs for slice_ in pack.slices)
        invariant(covered == list(range(self._slices)), f"the packs of checkpoint {done.epoch} hold {covered}")
        self._packs.sort(key=lambda pack: pack.container)
        work: dict[str | None, list[Pack]] = defaultdict(list)
        others = sorted(living)
        for pack in self._packs:
            # The next one in order: every verifier gets about as much as it wrote.
            later = [other for other in others if other > pack.container]
            earlier = [other for other in others if other < pack.container]
            work[next(iter(later + earlier), None)].append(pack)
        self._awaited = len(work)
        return [VerifyPacks(by, done.fence, done.epoch, tuple(packs)) for by, packs in work.items()]

    def verified(self, done: VerifyPacks) -> list[Instruction]:
        self._awaited -= 1
        if self._awaited:
            return []
        return [StoreManifest(done.fence, done.epoch, tuple(self._packs))]

    def stored(self, done: StoreManifest) -> list[Instruction]:
        invariant(done.epoch > self.newest, f"checkpoint {done.epoch} after {self.newest}")
        second, self.newest = self.newest, done.epoch
        self._before = second
        if self._wanted is not None and done.epoch >= self._wanted:
            self._wanted = None
        self.give_up()
        return [CutLog(done.fence, second)] if second else []

    def give_up(self) -> None:
        self.running, self._packs = False, []

    def pause(self, now: float) -> None:
        """Even one that somebody needs is not tried again at once: the trouble may be the store's."""
        self._not_before = now + AGAIN_SECONDS
