"""What a status says of sources, and how its parts are found."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

import holdfast as hf
from holdfast.api.named import Named
from holdfast.api.status import sources_of


@dataclass
class Told:
    """Of Spark's progress what is asked for."""

    numInputRows: int  # noqa: N815 - Spark's own name
    metrics: dict[str, str] | None = None


@dataclass
class Progress:
    sources: list[Told] = field(default_factory=list)


def test_a_source_that_stands_at_several_places_is_one() -> None:
    progress = Progress([Told(20), Told(7, {"avgOffsetsBehindLatest": "3.0"})])
    assert [one.rows for one in sources_of({"clicks": 4, "orders": 2}, progress)] == [5, 3]
    found = sources_of({"clicks": 2, "orders": 1}, progress)
    assert found == (hf.SourceStatus("clicks", 10), hf.SourceStatus("orders", 7, 3))
    assert [str(one) for one in found] == [
        "clicks: 10 rows in the last batch",
        "orders: 7 rows in the last batch, 3 behind",
    ]


@pytest.mark.parametrize("progress", [None, Progress(), Progress([Told(1)]), Progress([Told(1), Told(2), Told(3)])])
def test_what_spark_does_not_tell_is_not_guessed(progress: Progress | None) -> None:
    assert sources_of({"a": 1, "b": 1}, progress) == (hf.SourceStatus("a"), hf.SourceStatus("b"))


def test_parts_are_found_by_number_and_by_name() -> None:
    found = Named([hf.SourceStatus("a", 1), hf.SourceStatus("b", 2)])
    assert found[0] == found["a"] == found[-2]
    assert found[1:] == (hf.SourceStatus("b", 2),)
    with pytest.raises(KeyError, match="'c': there are 'a', 'b'"):
        found["c"]
