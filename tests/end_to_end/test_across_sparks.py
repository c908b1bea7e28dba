"""A job that one Spark began and another goes on with, its driver dead in between: real files in, real files out.

``tests/stores`` has stores of other Sparks, without files, which every run of the suite goes on with. Here both Sparks
are there: one is this environment's, the others are in those that ``./dev test --spark VERSION`` has made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit import Drill

pytestmark = [pytest.mark.spark, pytest.mark.heavy]
ROOT = Path(__file__).parents[2]
PLACES = ("after-prepare", "mid-sink", "after-sinks", "after-commit")


def version(python: str) -> str:
    asked = [python, "-c", "import pyspark; print(pyspark.__version__)"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def others() -> list[str]:
    """The Pythons of other Sparks, by ``HOLDFAST_OTHER_PYTHONS`` or where ``./dev`` puts them."""
    named = os.environ.get("HOLDFAST_OTHER_PYTHONS", "").split(os.pathsep)
    found = [one for one in named if one] or [str(one) for one in ROOT.glob(".venv*/bin/python")]
    return [one for one in sorted(found) if version(one) != version(sys.executable)]


@pytest.mark.parametrize("first", [False, True], ids=["the other goes on", "the other begins"])
@pytest.mark.parametrize("place", PLACES)
def test_a_prepared_epoch_is_finished_under_another_spark(tmp_path: Path, place: str, first: bool) -> None:
    found = others()
    assert found, "there is no other Spark here: run ./dev test --spark 4.2 once"
    for other in found:
        drill = Drill(tmp_path / version(other), files=5, rows=1000, keys=100, config={"shape": "two"})
        drill.plant(f"driver@{place}@3")
        drill.python = other if first else sys.executable
        killed = drill.run()
        assert killed.killed, killed.error[-3000:]
        drill.python = sys.executable if first else other
        ended = drill.run()
        assert ended.code == 0, ended.error[-3000:]
        drill.check()
