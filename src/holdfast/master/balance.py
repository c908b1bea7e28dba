"""Which slices move when containers come, go or run hot: a pure function, so that every driver and test agrees.

A move costs a copy of the slice's state, so there are as few as possible: slices of containers that leave, and as many
others as levelling takes. A destination that has a copy already only needs the newest epochs, so it is preferred among
those that level equally well. Greedy and deterministic (ties by version, room, host, name), not optimal: an exact
matching of slices to copies would save a copy now and then, and nobody could foretell it by reading.

Recovery deals orphans in ``assignment`` and leaves the living alone; this here is for migration.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from holdfast.errors import PlanError
from holdfast.invariants import invariant

WITHIN = 1.2  # the largest load of a container, over the mean, that is not worth a move
IDLE = 0.01  # of the mean load of a slice: what one counts for that never works
WITHIN_REACH = 0.8  # of the load of the slice that fits best: another may go instead because of its copy
NEARLY_AS_HOT = 64  # so many others are looked at
SLICES_A_CORE = 8
MOST_SLICES = 32_768
SLICES, FEWER_SLICES, MANY_STAGES = 128, 32, 8


def level(
    owners: Sequence[str | None],
    stay: Mapping[str, str],
    loads: Mapping[int, float] | None,
    copies: Sequence[Mapping[str, int]],
) -> dict[int, str]:
    """The moves (slice → destination) after which only containers of ``stay`` (container → host) own slices.

    Without loads the counts end up within one of each other. With loads the hottest fitting slices move, until no
    container has more than ``WITHIN`` times the mean or no single move helps. ``copies[slice]`` is holder → version.

    >>> level(["a", "a", "a", "b"], {"a": "h1", "b": "h1", "c": "h2"}, None, [{}, {"c": 7}, {}, {}])
    {1: 'c'}
    >>> level(["a", "a", "b", "b"], {"a": "h1"}, None, [{}] * 4)
    {2: 'a', 3: 'a'}
    >>> level(["a", "a", "a", "b"], {"a": "h1", "b": "h2"}, {0: 9.0, 1: 8.0, 2: 1.0, 3: 1.0}, [{}] * 4)
    {1: 'b'}
    """
    invariant(len(copies) == len(owners), "every slice has its copies")
    if not stay:
        return {}
    if loads is not None and any(loads.get(slice_, 0.0) > 0 for slice_ in range(len(owners))):
        return _ByLoad(owners, stay, loads, copies).moves()
    return _ByCount(owners, stay, copies).moves()


def slices_auto(cores_per_node: Sequence[int]) -> int:
    """How many slices a stage should have that may use so many cores on each node that can ever be provided.

    ChronoStream III-F: as many slices as the stage can ever have cores, N_max = N_1 + … + N_m, for then it can scale to
    all of them, one slice a thread. That leaves nothing to level with: when a slice is hot, or the cores in use do not
    divide N_max, some threads have twice the work of others. So there are at least eight slices a core, which bounds
    that excess to an eighth, and a power of two of them. The number is for the life of the job: count the nodes that
    may come, not those that are there.

    >>> slices_auto([16] * 4)
    512
    >>> slices_auto([2])
    16
    """
    if any(cores < 0 for cores in cores_per_node):
        raise PlanError(
            f"A node cannot have a negative number of cores: {list(cores_per_node)}.",
            safe="Nothing was started.",
            todo="Name the cores that the stage may use on each node.",
        )
    wanted = max(1, SLICES_A_CORE * sum(cores_per_node))
    return int(min(MOST_SLICES, 1 << (wanted - 1).bit_length()))


def slices_for(stages: int, more_may_come: bool) -> int:
    """How many slices a stage has if nobody says: fewer where there are many stages, or may be.

    Each slice of each stage costs a little in every epoch that it has rows of, and a container holds the same slices of
    all stages: they are what it works on side by side, so with many stages each may be coarser.

    >>> slices_for(1, more_may_come=False), slices_for(10, more_may_come=False), slices_for(1, more_may_come=True)
    (128, 32, 32)
    """
    return FEWER_SLICES if more_may_come or stages >= MANY_STAGES else SLICES


class _ByCount:
    """Every container ends with the mean rounded down, or one more as long as there are extras."""

    def __init__(
        self, owners: Sequence[str | None], stay: Mapping[str, str], copies: Sequence[Mapping[str, int]]
    ) -> None:
        self._stay, self._copies = stay, copies
        self._held: defaultdict[str, list[int]] = defaultdict(list)
        self._orphans: list[int] = []
        for slice_, owner in enumerate(owners):
            (self._held[owner] if owner in stay and owner is not None else self._orphans).append(slice_)
        least, self._extras = divmod(len(owners), len(stay))
        self._room = {container: least - len(self._held[container]) for container in sorted(stay)}
        self._hosts = Counter(dict.fromkeys(stay.values(), 0))
        for container, host in stay.items():
            self._hosts[host] += len(self._held[container])
        # Extras go first to those who have more than the mean: what they keep need not move.
        self._topped: set[str] = set()
        for container in sorted(stay, key=lambda name: (self._room[name], name)):
            if self._room[container] < 0 and self._extras:
                self._top(container)
        self._moves: dict[int, str] = {}

    def moves(self) -> dict[int, str]:
        # Who has fewest copies to go to chooses first; room only shrinks, so one look at each slice is enough.
        for slice_ in sorted(self._orphans, key=lambda slice_: (len(self._copies[slice_]), slice_)):
            self._to_a_copy(slice_)
        givers = [container for container, room in self._room.items() if room < 0]
        for giver in givers:
            for slice_ in self._held[giver]:
                if self._room[giver] < 0 and self._to_a_copy(slice_):
                    self._left(giver)
        for slice_ in self._orphans:
            if slice_ not in self._moves:
                self._to_most_room(slice_)
        for giver in givers:
            for slice_ in self._held[giver]:
                if self._room[giver] < 0 and slice_ not in self._moves:
                    self._to_most_room(slice_)
                    self._left(giver)
        invariant(not self._extras, "every slice has its place")
        invariant(not any(self._room.values()), "every slice has its place")
        return dict(sorted(self._moves.items()))

    def _has_room(self, container: str) -> bool:
        room = self._room[container]
        return room > 0 or (room == 0 and self._extras > 0 and container not in self._topped)

    def _top(self, container: str) -> None:
        """Room for one slice more than the mean rounded down, once for a container."""
        self._extras -= 1
        self._room[container] += 1
        self._topped.add(container)

    def _to_a_copy(self, slice_: int) -> bool:
        holders = [name for name in self._copies[slice_] if name in self._stay and self._has_room(name)]
        if holders:
            self._to(slice_, min(holders, key=lambda name: (-self._copies[slice_][name], *self._preference(name))))
        return bool(holders)

    def _to_most_room(self, slice_: int) -> None:
        self._to(slice_, min(filter(self._has_room, self._room), key=self._preference))

    def _preference(self, container: str) -> tuple[int, int, str]:
        return -self._room[container], self._hosts[self._stay[container]], container

    def _to(self, slice_: int, container: str) -> None:
        if not self._room[container]:
            self._top(container)
        self._room[container] -= 1
        self._hosts[self._stay[container]] += 1
        self._moves[slice_] = container

    def _left(self, giver: str) -> None:
        self._room[giver] += 1
        self._hosts[self._stay[giver]] -= 1


class _ByLoad:
    """Loads instead of counts. A slice that was never seen at work counts for a little: its state is a load too."""

    def __init__(
        self,
        owners: Sequence[str | None],
        stay: Mapping[str, str],
        loads: Mapping[int, float],
        copies: Sequence[Mapping[str, int]],
    ) -> None:
        self._owners, self._stay, self._copies = owners, stay, copies
        seen = [max(0.0, loads.get(slice_, 0.0)) for slice_ in range(len(owners))]
        little = IDLE * sum(seen) / len(seen)
        self._loads = [load + little for load in seen]
        self._limit = WITHIN * sum(self._loads) / len(stay)
        self._sums = dict.fromkeys(sorted(stay), 0.0)  # their order breaks ties
        self._movable: dict[str, list[tuple[float, int]]] = {container: [] for container in stay}  # coldest first
        self._now: dict[int, str] = {}

    def moves(self) -> dict[int, str]:
        orphans = []
        for slice_, owner in enumerate(self._owners):
            if owner is not None and owner in self._stay:
                self._put(slice_, owner)
            else:
                orphans.append(slice_)
        for slice_ in sorted(orphans, key=lambda slice_: (-self._loads[slice_], slice_)):
            self._put(slice_, self._near_a_copy(slice_) or self._least())
        for slice_, container in self._now.items():
            self._movable[container].append((self._loads[slice_], slice_))
        for movable in self._movable.values():
            movable.sort()
        while self._level_once():
            pass
        return {slice_: to for slice_, to in sorted(self._now.items()) if to != self._owners[slice_]}

    def _level_once(self) -> bool:
        """One slice away from the most loaded container; False if that has no more than it may, or no move helps."""
        giver = min(self._sums, key=lambda name: -self._sums[name])
        least = self._least()
        gap = self._sums[giver] - self._sums[least]
        movable = self._movable[giver]
        if self._sums[giver] <= self._limit or not movable:
            return False
        # Half the gap is best: the one below it or, if that leaves both sides lower, the one above.
        best = bisect_right(movable, (gap / 2, len(self._owners)))
        if best and (best == len(movable) or movable[best][0] >= gap - movable[best - 1][0]):
            best -= 1
        load = movable[best][0]
        if load >= gap * (1 - 1e-9):
            return False
        chosen, taker = best, least
        for at in range(best, max(-1, best - NEARLY_AS_HOT), -1):
            if movable[at][0] < WITHIN_REACH * load:
                break
            holder = self._near_a_copy(movable[at][1], giver)
            if holder is not None:
                chosen, taker = at, holder
                break
        _, slice_ = movable.pop(chosen)
        self._sums[giver] -= self._loads[slice_]
        self._put(slice_, taker)  # and there it stays: nothing moves twice, and this ends
        return True

    def _put(self, slice_: int, container: str) -> None:
        self._now[slice_] = container
        self._sums[container] += self._loads[slice_]

    def _least(self) -> str:
        return min(self._sums, key=lambda name: self._sums[name])

    def _near_a_copy(self, slice_: int, giver: str | None = None) -> str | None:
        """Who has a copy and would not get too much by it: the newest copy, then the least loaded."""
        having = self._copies[slice_]
        room = self._limit - self._loads[slice_]
        fitting = [name for name in having if name in self._stay and name != giver and self._sums[name] <= room]
        return min(fitting, key=lambda name: (-having[name], self._sums[name], name), default=None)
