"""Parts of many slices become one message, and each is found in it again."""

from __future__ import annotations

import numpy as np

from holdfast.state import copies
from holdfast.state.columns import DECIMAL, INT, SPANS
from holdfast.state.table import Layout

LAYOUT = Layout(1, True, (INT, SPANS, DECIMAL))


def part(*texts: bytes) -> copies.Picked:
    rows = len(texts)
    numbers = np.arange(rows, dtype=np.int64) + 100 * rows
    spread = (np.cumsum([0, *map(len, texts)]).astype(np.int64), np.frombuffer(b"".join(texts), np.uint8))
    short, pairs = numbers.astype(np.int32), np.stack([numbers, -numbers], axis=1)
    return copies.Picked(LAYOUT, rows, [short, short, numbers, short, numbers[:, None], spread, numbers, spread, pairs])


def test_each_part_of_a_message_is_what_it_was():
    parts = [part(b"one", b"", b"three"), part(), part(b"four"), part(b"", b"six")]
    message = copies.decode(copies.encode(parts), LAYOUT)
    assert message is not None
    start = 0
    for one in parts:
        mine = message.slice(start, start + one.rows)
        assert copies.encode([mine]).equals(copies.encode([one]))
        assert copies.encode([mine, mine]).equals(copies.encode([one, one]))
        assert mine.nbytes == one.nbytes
        start += one.rows


def test_other_columns_are_refused():
    assert copies.decode(copies.encode([part(b"a")]), Layout(1, False, (INT,))) is None
