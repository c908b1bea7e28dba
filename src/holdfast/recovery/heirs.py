"""Which container replaces a lost one for which of its slices.

SR3 lets the live node nearest to the failed one replace it. A container here owns many slices, and they come back
sooner on many: each goes to the live container nearest to its key on the ring that has not yet its share. Everyone who
sees the same containers alive comes to the same answer, so nobody has to be asked; where two do not see the same, a
slice may be brought back twice, and the routing table takes one of them.

Where a ring has more containers than a leaf set, nobody sees the same ones as all others, and shares cannot be agreed
upon: there a slice comes back where its key is at home, which is in the middle of those who hold its pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from math import ceil

from holdfast.ids import distance, id_of
from holdfast.safety.shards import key_of


def deal(job: str, slices: Iterable[int], live: Collection[str]) -> dict[int, str]:
    """Slice → container; no container gets more than its share, rounded up.

    >>> sorted(deal("j", range(4), ["a", "b"]).values())
    ['a', 'a', 'b', 'b']
    """
    wanted = sorted(set(slices))
    if not live:
        return {}
    share = ceil(len(wanted) / len(live))
    ids = {container: id_of(container) for container in live}
    dealt: Counter[str] = Counter()
    found: dict[int, str] = {}
    for slice_ in wanted:
        key = key_of(job, slice_)
        free = [container for container in ids if dealt[container] < share]
        found[slice_] = min(free, key=lambda container: (distance(key, ids[container]), container))
        dealt[found[slice_]] += 1
    return found


def at_home(job: str, slices: Iterable[int], live: Collection[str]) -> dict[int, str]:
    """Slice → the live container nearest to its key, however many that one has by now.

    >>> at_home("j", range(4), ["a", "b"]) == at_home("j", range(4), ["b", "a"])
    True
    """
    ids = {container: id_of(container) for container in live}
    return {
        slice_: min(ids, key=lambda one: (distance(key_of(job, slice_), ids[one]), one))
        for slice_ in sorted(set(slices))
        if ids
    }
