"""What may go of a named stream: one pure judgement over its blocks and who holds them.

Every reader has a ``Hold``: the blocks above the last one that it has. What lies below the least of them, and is older
than the stream is to keep, may go. A reader that has not been heard of for longer than that holds nothing any more: so
``keep`` bounds what one that is away may cost. Without ``keep`` a hold lasts until it is let go.

The newest block always stays: it says which number comes next, and which epoch has been put out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from holdfast.log.streams import StreamBlock, rows_number


@dataclass(frozen=True)
class Hold:
    """Who needs what is above ``position``."""

    by: str
    position: int
    idle: float = 0.0
    """Seconds since it was last heard of."""


@dataclass(frozen=True)
class HeldStream:
    """What a stream has, and who needs it. Ages are in seconds."""

    keep: float | None
    blocks: Mapping[int, float] = field(default_factory=dict)  # number → age
    holds: Sequence[Hold] = ()
    rows: Sequence[str] = ()
    named: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """Files of rows that blocks name, of those blocks that were looked at."""


def live(holds: Sequence[Hold], keep: float | None) -> list[Hold]:
    """Those that still hold something."""
    return [one for one in holds if keep is None or one.idle <= keep]


def cut_of(held: HeldStream) -> int:
    """Blocks up to and with this one may go."""
    if not held.blocks or held.keep == inf:
        return 0
    newest = max(held.blocks)
    read = min([newest - 1, *(one.position for one in live(held.holds, held.keep))])
    young = [number for number, age in held.blocks.items() if held.keep is not None and age <= held.keep]
    return min(read, min(young, default=newest) - 1)


def stream_may_go(held: HeldStream) -> list[str]:
    """Names in the stream's folder, in the order in which they may be deleted: a block before what it names, the oldest
    first, so that what is there has no gap.

    Of files of rows that no block names: those whose number is a block's, or below all. Above the newest one somebody
    may be writing just now.
    """
    cut = cut_of(held)
    blocks = [StreamBlock.file_of(number) for number in sorted(held.blocks) if number <= cut]
    first = min((number for number in held.blocks if number > cut), default=0)
    numbered = [(number, name) for name in held.rows if (number := rows_number(name)) is not None]
    rows = [name for number, name in numbered if number < first]
    rows += [name for number, name in numbered if number in held.named and name not in held.named[number]]
    return blocks + rows


def backlogs(held: HeldStream) -> dict[str, int]:
    """How many blocks each reader that holds something has before it."""
    newest = max(held.blocks, default=0)
    return {one.by: newest - one.position for one in live(held.holds, held.keep)}


def held_by(held: HeldStream) -> tuple[str, ...]:
    """Who keeps the oldest block from going: those that have not read it."""
    oldest = min(held.blocks, default=0)
    return tuple(sorted(one.by for one in live(held.holds, held.keep) if one.position < oldest))
