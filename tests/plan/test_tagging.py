"""Rows of unlike shape in one frame and out of it again, without Spark; the end-to-end tests do it with."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from holdfast.plan.tagging import INPUT, Tagging, tagging

KINDS = {
    "bigint": (LongType(), pa.int64()),
    "string": (StringType(), pa.string()),
    "timestamp": (TimestampType(), None),
}


def schema(*kinds: str) -> StructType:
    return StructType([StructField(f"f{at}", KINDS[kind][0]) for at, kind in enumerate(kinds)])


def test_branches_share_columns_of_one_type() -> None:
    found, types = tagging([schema("bigint", "string", "bigint"), schema("string", "timestamp", "bigint", "string")])
    assert [kind.simpleString() for kind in types] == ["bigint", "string", "bigint", "timestamp", "string"]
    assert found.branches == (
        (("f0", 0), ("f1", 1), ("f2", 2)),
        (("f0", 1), ("f1", 3), ("f2", 0), ("f3", 4)),
    )


SHAPES = st.lists(st.lists(st.sampled_from(["bigint", "string"]), min_size=1, max_size=4), min_size=2, max_size=4)


@given(shapes=SHAPES, order=st.lists(st.integers(0, 3), max_size=12))
def test_every_row_comes_back_to_its_branch(shapes: list[list[str]], order: list[int]) -> None:
    found, types = tagging([schema(*shape) for shape in shapes])
    arrow = [KINDS[kind.simpleString()][1] for kind in types]
    order = [number % len(shapes) for number in order]
    rows, expected = [], [[] for _ in shapes]
    for at, number in enumerate(order):
        made = {
            f: (at if KINDS[k][1] == pa.int64() else f"{at}")
            for (f, _), k in zip(found.branches[number], shapes[number], strict=True)
        }
        expected[number].append(made)
        rows.append({INPUT: number} | {f"c{to}": made[name] for name, to in found.branches[number]})
    union = pa.schema([(INPUT, pa.int32()), *((f"c{at}", kind) for at, kind in enumerate(arrow))])
    batch = pa.RecordBatch.from_pylist(rows, union)
    back: list[list[dict[str, object]]] = [[] for _ in shapes]
    for number, mine in Tagging(found.branches).split(batch):
        back[number] += mine.to_pylist()
    assert back == expected
