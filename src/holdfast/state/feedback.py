"""What an epoch feeds back to the functions of the next one (ELF 2.4: a result that is multicast to all agents).

It is few rows, and everybody gets all of them, so they travel as one piece: Arrow's bytes, which ``commit e`` holds and
``prepare e+1`` repeats. Whoever applies e+1 finds them where it finds the rows: a container that was sent the prepare,
one that replays the log a week later, the destination of a move. Nothing is asked of the epoch before, whose commit may
be gone by then.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import SinkError

LIMIT = 64 << 10
"""Bytes of one feedback. It is in a commit, in the next prepare for each level that has functions, and in memory of
every container."""
MOST_ROWS = LIMIT
"""None fits that has more: whoever collects need not look further."""
NO_FEEDBACK: Mapping[str, bytes] = {}

Fed = tuple[Mapping[str, Any], ...]


class Feedback(Mapping[str, Fed]):
    """``context.feedback``: rows by name, made when they are first asked for. Functions of all keys get the same ones,
    so nobody can change them."""

    def __init__(self, given: Mapping[str, bytes]) -> None:
        self._given = given

    def __getitem__(self, name: str) -> Fed:
        if name not in self._given:
            raise KeyError(f"nothing is fed back as '{name}'; what is: {', '.join(self._given) or 'nothing'}")
        return unpacked(self._given[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def packed(name: str, epoch: int, rows: pa.Table) -> bytes:
    """The rows of a feedback in the order of their columns, from the left; nothing if there are none. Raises if they
    are too many."""
    if not rows.num_rows:
        return b""
    keys = {f"k{at}": _sortable(column) for at, column in enumerate(rows.columns)}
    at = pc.sort_indices(pa.table(keys), sort_keys=[(key, "ascending") for key in keys])
    ordered = rows.take(at).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ordered.schema) as stream:
        stream.write_table(ordered)
    data: bytes = sink.getvalue().to_pybytes()
    if len(data) > LIMIT:
        raise too_large(name, epoch, f"{len(data):,} bytes in {rows.num_rows:,} rows")
    return data


@lru_cache(maxsize=64)
def unpacked(data: bytes) -> Fed:
    """The rows, for all slices and calls that ask; the bytes of a prepare are the same object for all of them."""
    if not data:
        return ()
    with pa.ipc.open_stream(data) as stream:
        found: Fed = tuple(_frozen(row) for row in stream.read_all().to_pylist())
    return found


def too_large(name: str, epoch: int, size: str) -> SinkError:
    return SinkError(
        f"Feedback '{name}' of epoch {epoch} is {size}; at most {LIMIT:,} bytes of it go with a commit.",
        safe="The epoch is prepared and not committed, so its rows will be the same.",
        todo=f"Feed back less of the same stage: .where(…) or .select(…) before .feedback('{name.split('/')[-1]}'), "
        "as in .where('rank <= 10') behind a top_k. Then start again: the epoch is finished with what is drawn then.",
    )


def _sortable(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Arrow orders no lists, maps or structs: they go by how they are written."""
    if pa.types.is_nested(column.type) or pa.types.is_null(column.type):
        return pa.array([repr(value) for value in column.to_pylist()], pa.string())
    return column


def _frozen(value: Any) -> Any:
    match value:
        case dict():
            return MappingProxyType({name: _frozen(one) for name, one in value.items()})
        case list() | tuple():
            return tuple(map(_frozen, value))
        case dt.datetime() if value.tzinfo is not None:
            return value.astimezone(dt.UTC)
        case _:
            return value
