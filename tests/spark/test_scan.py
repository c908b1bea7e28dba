"""Scans when containers come and go, against a real container and a master's desk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_container_process import Hosted, rows_of

from holdfast.container.client import Address
from holdfast.errors import ContainerError
from holdfast.spark import scan as scanning
from holdfast.spark.desk import Desk
from holdfast.spark.scan import Scan, groups_to_wire


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    made = Hosted(tmp_path)
    *_, prepare = made.log(1, rows_of(list(range(100)), list(range(100))))
    made.apply(prepare, 0)
    yield made
    made.close()


def scan_over(hosted: Hosted, desk: Desk, address: Address) -> Scan:
    return Scan(desk.address, "secret", "j", 1, "counts", 1, 1, "changed", ((address, (0, 1, 2, 3)),))


GONE = Address("gone", "grpc://127.0.0.1:9")


def test_it_goes_on_where_the_slices_are_now(hosted: Hosted) -> None:
    answers = iter(
        [
            [],  # nobody has them yet
            [(hosted.client.address, (0, 1))],  # only some
            [(hosted.client.address, (2, 3))],
        ]
    )
    asked = []

    def locate(header: dict[str, Any]) -> dict[str, Any]:
        asked.append(header["slices"])
        return {"groups": groups_to_wire(next(answers))}

    desk = Desk("127.0.0.1", "secret", {"locate": locate})
    try:
        batches = list(scan_over(hosted, desk, GONE).part(0))
    finally:
        desk.close()
    assert sorted(key for batch in batches for key in batch["k"].to_pylist()) == list(range(100))
    assert asked == [[0, 1, 2, 3], [0, 1, 2, 3], [2, 3]]


def test_slices_that_nobody_takes_are_an_error_not_an_end(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "GIVE_UP_SECONDS", 0.3)
    desk = Desk("127.0.0.1", "secret", {"locate": lambda header: {"groups": []}})
    try:
        with pytest.raises(ContainerError, match="had no owner"):
            list(scan_over(hosted, desk, GONE).part(0))
    finally:
        desk.close()
