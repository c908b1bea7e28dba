"""What is no column is refused where it stands; several may be a list, as in PySpark. Without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast import testing


def rows() -> hf.Stream:
    return testing.Job().read("k int, g int, v int, ts timestamp", name="rows")


@pytest.mark.parametrize(
    "draw",
    [
        lambda of: of.select("k", 3),
        lambda of: of.key_by(3),
        lambda of: of.key_by(["k", None]),
        lambda of: of.key_by("k").agg(n=hf.sum(3)),
        lambda of: of.key_by("k").agg(n=hf.count(3)),
        lambda of: of.key_by("k").agg(n=hf.first(None)),
        lambda of: of.key_by("k").agg(n=hf.count_distinct(("k", "g"))),
        lambda of: of.key_by("k").agg(n=hf.sum("v", where=True)),
        lambda of: of.key_by("k").window(hf.tumbling("1 s"), time=3),
        lambda of: of.key_by("k").distinct(time=3, within="1 s"),
        lambda of: of.key_by("k").process(print, "k int", time=3),
        lambda of: of.key_by("k").join(of.key_by("k"), time=("ts", 3)),
        lambda of: of.key_by("k").top_k(1, by=3.5),
        lambda of: of.key_by("k").top_k(1, by=[(3, "asc")]),
        lambda of: of.top_k(1, by="v", per=[3]),
    ],
)
def test_what_is_no_column_is_refused(draw: Callable[[Any], object]) -> None:
    with pytest.raises(hf.PlanError, match="which is no column") as refused:
        draw(rows())
    assert "F.col" in refused.value.todo


def test_several_may_be_a_list() -> None:
    assert rows().select(["k", "v"]).columns == ["k", "v"]
    assert rows().select("k", ["v"]).columns == ["k", "v"]
    assert rows().key_by(["k", "g"]).agg(n=hf.count()).columns == ["k", "g", "n"]
    assert rows().top_k(1, by=("v", "g"), per=["k"]).columns == ["k", "rank", "v", "g", "ts"]
    counts = rows().key_by("k").agg(n=hf.count())  # with a column that must not be lost on the way
    assert counts.select(["k", "n"]).key_by("n").agg(keys=hf.count()).columns == ["n", "keys"]


def test_a_join_by_one_name_for_the_time_of_both_sides() -> None:
    job = testing.Job()
    left, right = (job.read(f"k int, ts timestamp, {name} int", name=name) for name in ("a", "b"))
    assert left.key_by("k", "ts").join(right.key_by("k", "ts"), time="ts", within="1 s").columns == [
        "k",
        "ts",
        "a",
        "b",
    ]
    with pytest.raises(hf.PlanError, match="needs the event time of both sides"):
        left.key_by("k", name="x").join(right.key_by("k"), within="1 s")
