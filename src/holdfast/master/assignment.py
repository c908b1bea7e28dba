"""Which container gets which slice: a pure function, so that every driver and every test agrees.

Only slices without a living owner move: a slice's state is worth more than a perfect balance. The ones that
move are dealt to whoever has fewest, ties by the container's id, so the outcome depends on nothing but the
arguments. Levelling out living owners is migration's work, not recovery's.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence


def assign(owners: Sequence[str | None], living: Iterable[str]) -> tuple[str | None, ...]:
    """The owners with every orphan given to a living container; orphans stay so if nobody lives.

    >>> assign(["a", "b", "b", "a"], {"a", "c"})
    ('a', 'c', 'c', 'a')
    >>> assign([None] * 3, {"b", "a"})
    ('a', 'b', 'a')
    """
    alive = set(living)
    load = Counter(owner for owner in owners if owner in alive)
    fewest = [(load[container], container) for container in alive]
    heapq.heapify(fewest)
    table: list[str | None] = []
    for owner in owners:
        if owner in alive:
            table.append(owner)
        elif not fewest:
            table.append(None)
        else:
            held, container = fewest[0]
            heapq.heapreplace(fewest, (held + 1, container))
            table.append(container)
    return tuple(table)
