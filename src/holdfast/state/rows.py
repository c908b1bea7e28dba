"""Decoded rows: what a chunk's Arrow batch becomes, once, before any slice applies its part of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.invariants import invariant
from holdfast.state.columns import NO_BYTES, NO_INTS, Array, Bytes, Ints, joined
from holdfast.state.keys import KeyRows


class Values:
    """One value column: numbers, decimal words, spans into ``data``, or nothing but validity."""

    __slots__ = ("data", "valid", "values")

    def __init__(self, values: Array, valid: Bytes = NO_BYTES, data: Bytes | None = None) -> None:
        self.values = values
        self.valid = valid
        self.data = data

    def slice(self, start: int, stop: int) -> Values:
        valid = self.valid[start:stop] if len(self.valid) else self.valid
        return Values(self.values[start:stop] if len(self.values) else self.values, valid, self.data)

    def take(self, at: Array) -> Values:
        valid = self.valid[at] if len(self.valid) else self.valid
        return Values(self.values[at] if len(self.values) else self.values, valid, self.data)

    @staticmethod
    def concat(parts: Sequence[Values], lengths: Sequence[int]) -> Values:
        valid = NO_BYTES
        if any(len(part.valid) for part in parts):
            valid = np.concatenate(
                [
                    part.valid if len(part.valid) else np.ones(length, np.uint8)
                    for part, length in zip(parts, lengths, strict=True)
                ]
            )
        if parts[0].data is not None:
            spans, data = joined([(part.values, part.data) for part in parts if part.data is not None])
            return Values(spans, valid, data)
        return Values(np.concatenate([part.values for part in parts]), valid)


class Rows:
    """Rows of one chunk or of one slice's part of it; slicing gives views."""

    __slots__ = ("keys", "partial", "sign", "values")

    def __init__(
        self, keys: KeyRows, values: Sequence[Values] = (), sign: Ints = NO_INTS, partial: bool = False
    ) -> None:
        self.keys = keys
        self.values = values
        self.sign = sign
        self.partial = partial

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, stop: int) -> Rows:
        sign = self.sign[start:stop] if len(self.sign) else self.sign
        values = [column.slice(start, stop) for column in self.values]
        return Rows(self.keys.slice(start, stop), values, sign, self.partial)

    def take(self, at: Array) -> Rows:
        """Those rows, in that order."""
        sign = self.sign[at] if len(self.sign) else self.sign
        return Rows(self.keys.take(at), [column.take(at) for column in self.values], sign, self.partial)

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        """The parts one after the other; they must come from the same decoding."""
        parts = [part for part in parts if len(part)] or list(parts[:1])
        invariant(parts, "no rows of no stage have no columns")
        if len(parts) == 1:
            return parts[0]
        invariant(len({part.partial for part in parts}) == 1, "rows and partial rows do not mix")
        lengths = [len(part) for part in parts]
        columns = zip(*(part.values for part in parts), strict=True)
        return Rows(
            KeyRows.concat([part.keys for part in parts]),
            [Values.concat(column, lengths) for column in columns],
            np.concatenate([part.sign for part in parts]),
            parts[0].partial,
        )
