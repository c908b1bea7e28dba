"""Rows of a slice in pieces by ranges of the hash: cut apart, deltas collapsed, merged again in the order of slots.

A piece's rows keep their slots, so pieces put together are the table bit for bit, whoever merged which of them where
and in which order they came. Streams are merged chunk by chunk: a node on the way holds a chunk of each, never a
whole piece of somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from holdfast.state import arrow
from holdfast.state.columns import Array, Ints

CHUNK_ROWS = 16_384


def cut(part: pa.RecordBatch, bounds: Sequence[int]) -> list[tuple[int, pa.RecordBatch]]:
    """The rows of a part by the range that their hash is in, each still in the order of slots; empty ones left out."""
    places = np.searchsorted(np.asarray(bounds, np.int64), arrow.column_of(part.column("hash"), "i8"), side="right") - 1
    order = np.argsort(places, kind="stable")
    ends = np.cumsum(np.bincount(places, minlength=len(bounds)))
    grouped = part.take(pa.array(order))
    starts = [0, *ends[:-1].tolist()]
    return [
        (place, grouped.slice(start, end - start))
        for place, (start, end) in enumerate(zip(starts, ends.tolist(), strict=True))
        if end > start
    ]


def collapsed(layers: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """What full rows and the changed rows after them come to: the newest of each slot, in the order of slots."""
    if len(layers) == 1:
        return layers[0]
    together = pa.concat_batches(layers)
    slots = _slots(together)
    order = np.argsort(slots, kind="stable")
    last = np.flatnonzero(np.append(np.diff(slots[order]) != 0, True)) if len(order) else order
    return together.take(pa.array(order[last]))


def chunks(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows.num_rows, CHUNK_ROWS):
        yield rows.slice(start, CHUNK_ROWS)


def loose(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows, part after part, in chunks of about the same size: small parts together, large ones cut."""
    small: list[pa.RecordBatch] = []
    for part in parts:
        if part.num_rows > CHUNK_ROWS // 2:
            yield from chunks(part)
            continue
        small.append(part)
        if sum(one.num_rows for one in small) > CHUNK_ROWS // 2:
            yield pa.concat_batches(small)
            small = []
    if any(one.num_rows for one in small):
        yield pa.concat_batches(small)


def merged(streams: Iterable[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Streams in the order of slots, no slot in two of them, as one."""
    waiting: list[tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]] = []
    for stream in streams:
        _next(stream, waiting)
    while waiting:
        if len(waiting) == 1:
            rows, stream = waiting.pop()
            yield rows
            yield from stream
            return
        # Up to the least of the last slots at hand nothing can come any more.
        limit = min(int(_slots(rows)[-1]) for rows, _ in waiting)
        ready, rest = [], waiting
        waiting = []
        for rows, stream in rest:
            end = int(np.searchsorted(_slots(rows), limit, side="right"))
            if end:
                ready.append(rows.slice(0, end))
            if end < rows.num_rows:
                waiting.append((rows.slice(end), stream))
            else:
                _next(stream, waiting)
        yield _in_order(ready)


def _next(stream: Iterator[pa.RecordBatch], waiting: list[tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]]) -> None:
    for rows in stream:
        if rows.num_rows:
            waiting.append((rows, stream))
            return


def _in_order(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    together = pa.concat_batches(parts)
    return together.take(pa.array(np.argsort(_slots(together), kind="stable")))


def _slots(rows: pa.RecordBatch) -> Ints | Array:
    return arrow.column_of(rows.column("slot"), "i4")
