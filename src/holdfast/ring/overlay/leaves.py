"""The leaf set: the nodes next to this one on the ring, half of them on either side.

It is one sorted list of offsets, clockwise from the owner. The first half are the neighbours to the right, the last
half those to the left; whoever makes the list too long pushes out the one in the middle, which is the farthest. No
side has to be kept apart, and rings smaller than the leaf set, where both sides overlap, are no special case.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from holdfast.ids import HALF, MASK, RING


class LeafSet:
    """The leaves of ``owner``; ``size`` at most, and the nearest of all that were ever added and not removed."""

    __slots__ = ("_all", "_half", "_offsets", "members", "owner", "size", "version")

    def __init__(self, owner: int, size: int) -> None:
        self.owner = owner
        self.size = size
        self.members: set[int] = set()
        self.version = 0
        """Grows with every change."""
        self._half = size // 2
        self._offsets: list[int] = []
        self._all: tuple[int, ...] | None = ()

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, peer: int) -> bool:
        return peer in self.members

    @property
    def full(self) -> bool:
        return len(self._offsets) == self.size

    def all(self) -> tuple[int, ...]:
        """The leaves, clockwise from the owner. The same tuple until something changes: nobody copies it."""
        if self._all is None:
            self._all = tuple([(self.owner + offset) & MASK for offset in self._offsets])
        return self._all

    def beside(self) -> tuple[int, ...]:
        """The next neighbours: to the right and to the left, or the only one there is."""
        everyone = self.all()
        return everyone if len(everyone) < 2 else (everyone[0], everyone[-1])

    def wants(self, peer: int) -> bool:
        """Would it be a leaf, if it were added now?"""
        if peer in self.members or peer == self.owner:
            return False
        if len(self._offsets) < self.size:
            return True
        offset = (peer - self.owner) & MASK
        return offset < self._offsets[self._half - 1] or offset > self._offsets[self._half]

    def add(self, peer: int) -> bool:
        if not self.wants(peer):
            return False
        offsets = self._offsets
        insort(offsets, (peer - self.owner) & MASK)
        self.members.add(peer)
        if len(offsets) > self.size:
            self.members.discard((self.owner + offsets.pop(self._half)) & MASK)
        self._changed()
        return True

    def remove(self, peer: int) -> bool:
        if peer not in self.members:
            return False
        self.members.discard(peer)
        offset = (peer - self.owner) & MASK
        del self._offsets[bisect_left(self._offsets, offset)]
        self._changed()
        return True

    def _changed(self) -> None:
        self._all = None
        self.version += 1

    def covers(self, key: int) -> bool:
        """Does the key lie between the outermost leaves? Then the nearest leaf is the nearest node of all.

        A set that is not full covers what lies between the farthest of either half of the ring. Whether it is short
        because the ring is so small, or because leaves were just lost, it cannot know: ``View`` does.
        """
        offsets = self._offsets
        if not offsets:
            return False
        offset = (key - self.owner) & MASK
        split = self._half if len(offsets) == self.size else bisect_left(offsets, HALF)
        return (split > 0 and offset <= offsets[split - 1]) or (
            offset == 0 or (split < len(offsets) and offset >= offsets[split])
        )

    def nearest(self, key: int, without: int | None = None) -> int:
        """The nearest to the key of the leaves and the owner, leaving out one of the leaves if told so."""
        owner, offsets = self.owner, self._offsets
        count = len(offsets)
        offset = (key - owner) & MASK
        above = bisect_left(offsets, offset)
        below = above - 1
        if without is not None and without in self.members:
            left_out = (without - owner) & MASK
            if above < count and offsets[above] == left_out:
                above += 1
            if below >= 0 and offsets[below] == left_out:
                below -= 1
        low = offsets[below] if below >= 0 else 0
        high = offsets[above] if above < count else RING
        up, down = high - offset, offset - low
        one, other = (owner + low) & MASK, (owner + high) & MASK
        # Measured both ways round: in a ring of very few nodes the shorter way may lead past the owner.
        up, down = min(up, RING - up), min(down, RING - down)
        if up == down:
            return min(one, other)
        return other if up < down else one
