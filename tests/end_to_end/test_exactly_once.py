"""Kill anything anywhere: state and sinks still equal what a batch query says."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import Drill

from holdfast import faults


def test_without_faults(tmp_path: Path) -> None:
    drill = Drill(tmp_path)
    ended = drill.run()
    assert ended.code == 0, ended.error
    drill.check()


@pytest.mark.parametrize("place", [place for place in faults.PLACES if place != "in-intake"])
def test_driver_killed(tmp_path: Path, place: str) -> None:
    drill = Drill(tmp_path)
    drill.plant(f"driver@{place}@3", f"driver@{place}@5")
    for _ in range(2):
        ended = drill.run()
        assert ended.killed, ended.error
    ended = drill.run()
    assert ended.code == 0, ended.error
    assert drill.planted == []
    drill.check()


@pytest.mark.parametrize("place", ["mid-apply", "mid-sink"])
def test_container_killed(tmp_path: Path, place: str) -> None:
    drill = Drill(tmp_path)
    drill.plant(f"container@{place}@2", f"container@{place}@5")
    ended = drill.run()
    assert ended.code == 0, ended.error
    assert drill.planted == []
    assert [kind for kind, _ in drill.report["events"]].count("lost") == 2
    drill.check()
