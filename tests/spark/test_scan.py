"""Scans when containers come and go, against a real container and a master's desk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_container_process import Hosted, rows_of

from holdfast.driver.endpoint import Desk
from holdfast.errors import ContainerError
from holdfast.spark import scan as scanning
from holdfast.spark.scan import Scan, in_ranges
from holdfast.wire.client import Address
from holdfast.wire.handlers import handler
from holdfast.wire.messages import Groups
from holdfast.wire.questions import Locate, Located


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    made = Hosted(tmp_path)
    *_, prepare = made.log(1, rows_of(list(range(100)), list(range(100))))
    made.apply(prepare)
    yield made
    made.close()


def scan_over(hosted: Hosted, desk: Desk, address: Address) -> Scan:
    return Scan(desk.address, "secret", "j", 1, "counts", 1, 1, "changed", (((address, (0, 1, 2, 3)),),))


def desk_that(locates: Callable[[Locate], Groups]) -> Desk:
    class Locating:
        @handler
        def locate(self, call: Locate) -> Located:
            return Located(locates(call))

    desk = Desk("127.0.0.1", "secret")
    desk.table.add(Locating())
    return desk


GONE = Address("gone", "grpc://127.0.0.1:9")


def test_it_goes_on_where_the_slices_are_now(hosted: Hosted) -> None:
    answers = iter(
        [
            (),  # nobody has them yet
            ((hosted.client.address, (0, 1)),),  # only some
            ((hosted.client.address, (2, 3)),),
        ]
    )
    asked = []

    desk = desk_that(lambda call: asked.append(call.slices) or next(answers))
    try:
        batches = list(scan_over(hosted, desk, GONE).part(0))
    finally:
        desk.close()
    assert sorted(key for batch in batches for key in batch["k"].to_pylist()) == list(range(100))
    assert asked == [(0, 1, 2, 3), (0, 1, 2, 3), (2, 3)]


def test_slices_that_nobody_takes_are_an_error_not_an_end(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "GIVE_UP_SECONDS", 0.3)
    desk = desk_that(lambda call: ())
    try:
        with pytest.raises(ContainerError, match="had no owner"):
            list(scan_over(hosted, desk, GONE).part(0))
    finally:
        desk.close()


def test_parts_are_ranges_of_slices_whoever_owns_them() -> None:
    one, other = Address("a", "grpc://127.0.0.1:1"), Address("b", "grpc://127.0.0.1:2")
    before = ((one, (0, 1, 2, 3, 4)), (other, (5, 6, 7)))
    after = ((one, (0, 2, 7)), (other, (1, 3, 4, 5, 6)))
    for parts, ranges in ((1, [range(8)]), (None, [range(4), range(4, 8)]), (3, [range(3), range(3, 6), range(6, 8)])):
        for groups in (before, after):
            found = in_ranges(groups, parts)
            assert [sorted(number for _, slices in part for number in slices) for part in found] == [*map(list, ranges)]
            assert all(set(slices) <= set(dict(groups)[address]) for part in found for address, slices in part)
            assert all(len({address for address, _ in part}) == len(part) for part in found), "each is called once"
    assert in_ranges(()) == ()
    assert len(in_ranges(before, 100)) == 8
