"""Which container gets which slice: a pure function, so that every driver and every test agrees.

Only slices without a living owner move: a slice's state is worth more than a perfect balance. How many of them a
container gets is dealt to whoever has fewest, ties by the container's id, so the outcome depends on nothing but the
arguments; which ones are runs of neighbours, because neighbours share the chunks of a segment, and a chunk should be
read by one container only. Levelling out living owners is migration's work, not recovery's.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence


def assign(
    owners: Sequence[str | None], living: Iterable[str], takers: Iterable[str] | None = None
) -> tuple[str | None, ...]:
    """The owners with every orphan given to a living container; orphans stay so if nobody lives.

    ``takers``: those of the living that may get one.

    >>> assign(["a", "b", "b", "a"], {"a", "c"})
    ('a', 'c', 'c', 'a')
    >>> assign([None] * 3, {"b", "a"})
    ('a', 'a', 'b')
    """
    alive = set(living)
    load = Counter(owner for owner in owners if owner in alive)
    fewest = [(load[container], container) for container in (alive if takers is None else alive.intersection(takers))]
    heapq.heapify(fewest)
    orphans = [slice_ for slice_, owner in enumerate(owners) if owner not in alive]
    table = [owner if owner in alive else None for owner in owners]
    if fewest:
        dealt: list[str] = []
        for _ in orphans:
            held, container = fewest[0]
            heapq.heapreplace(fewest, (held + 1, container))
            dealt.append(container)
        for slice_, container in zip(orphans, sorted(dealt), strict=True):
            table[slice_] = container
    return tuple(table)
