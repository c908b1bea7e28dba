"""What a named stream has and who holds it, as it is found in the store; and what may go of it, deleted."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable
from itertools import islice

from holdfast.errors import CorruptionError, StoreError
from holdfast.log.holds import HeldStream, Hold, stream_may_go
from holdfast.log.store import Store
from holdfast.log.streams import NamedStream, rows_number, streams_of

READS = 100
"""Blocks that one round reads at most."""
_BLOCK = re.compile(r"\d{10,}")


class StreamTidying:
    """For a janitor: round by round, over all streams of a job's store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clean: dict[tuple[str, int], int] = {}  # how many files a block had when all of them were named

    def round(self, deadline: float) -> list[str]:
        """What was deleted, by its names in the job's store."""
        return [name for stream in streams_of(self._store) for name in self._tidy(stream, deadline)]

    def _tidy(self, stream: NamedStream, deadline: float) -> Iterable[str]:
        held = held_stream(stream)
        if held is None:
            return
        for name in stream_may_go(self._with_rows(stream, held)):
            if time.monotonic() > deadline:
                return
            stream.store.delete([name])
            yield f"{stream.folder}/{name}"

    def _with_rows(self, stream: NamedStream, held: HeldStream) -> HeldStream:
        rows = [f"rows/{name}" for name in stream.store.list("rows")]
        counts = Counter(number for name in rows if (number := rows_number(name)) is not None)
        unsure = [n for n, many in counts.items() if n in held.blocks and self._clean.get((stream.name, n)) != many]
        named = {}
        for number in islice(sorted(unsure, reverse=True), READS):
            try:
                block = stream.blocks.get(number)
            except CorruptionError:
                continue  # nobody can say
            if block is not None:
                named[number] = frozenset(one.name for one in block.files if one.name)
                self._clean[stream.name, number] = len(named[number])
        return HeldStream(held.keep, held.blocks, held.holds, rows, named)


def held_stream(stream: NamedStream) -> HeldStream | None:
    """Its blocks and holds; None while there is no saying what a reader holds."""
    try:
        layout, leases = stream.layouts.newest(), stream.leases()
    except (CorruptionError, StoreError):
        return None
    if layout is None:
        return None
    now = time.time_ns() // 1_000_000
    ages = stream.store.ages("block", lambda name: bool(_BLOCK.fullmatch(name)))
    blocks = {int(name.rpartition("/")[2]): age for name, age in ages.items()}
    holds = [Hold(one.reader, one.position, max(now - one.renewed, 0) / 1000) for one in leases]
    return HeldStream(layout.keep, blocks, holds)
