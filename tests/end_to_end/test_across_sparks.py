"""A job that one Spark began and another goes on with, its driver dead in between.

``tests/stores`` has a store of each Spark, its driver killed after the prepare of epoch 8 (``tests/stores/make.py``):
every run of the suite finishes those of the others. With ``--heavy`` both Sparks are there, with real files in and out:
one is this environment's, the others are in those that ``./dev test --spark VERSION`` has made.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pyspark
import pytest
from kit import Drill
from pyspark.sql import SparkSession
from test_older_stores import check, draw

import holdfast as hf
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
HERE = pyspark.__version__.rpartition(".")[0]
KEPT = [path for path in sorted((ROOT / "tests/stores").glob("spark-*.tar.xz")) if f"spark-{HERE}." not in path.name]
PLACES = ("after-prepare", "mid-sink", "after-sinks", "after-commit")


@pytest.mark.parametrize(
    "kept",
    [pytest.param(kept, marks=() if kept == KEPT[-1] else pytest.mark.heavy) for kept in KEPT],
    ids=lambda path: path.name.removesuffix(".tar.xz"),
)
def test_what_another_spark_prepared_is_finished(tmp_path: Path, spark: SparkSession, kept: Path) -> None:
    with tarfile.open(kept) as archive:
        archive.extractall(tmp_path, filter="data")
    ledger = Ledger(Store(str(tmp_path / "store")), "main")
    newest, prepare = ledger.last_committed(), ledger.get_prepare(8, 1)
    assert newest is not None
    assert newest.fence.epoch == 7
    assert prepare is not None
    job, streams = draw(spark, str(tmp_path / "store"))
    with job.start(containers=2, slices=4, safety=hf.Delta(store_every=3)) as run:
        assert run._shell.wait_for(lambda: run._shell.machine.committed >= 10 or run._shell.failure is not None, 300)
        assert ledger.get_prepare(8, 1) == prepare  # finished as it was, not prepared again
        states = {name: run.state(stream) for name, stream in streams.items()}
        found = {name: (state.to_arrow(), state.epoch) for name, state in states.items()}
    for name, (table, epoch) in found.items():
        check(name, table, epoch)


def version(python: str) -> str:
    asked = [python, "-c", "import pyspark; print(pyspark.__version__)"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def others() -> list[str]:
    """The Pythons of other Sparks, by ``HOLDFAST_OTHER_PYTHONS`` or where ``./dev`` puts them."""
    named = os.environ.get("HOLDFAST_OTHER_PYTHONS", "").split(os.pathsep)
    found = [one for one in named if one] or [str(one) for one in ROOT.glob(".venv*/bin/python")]
    return [one for one in sorted(found) if version(one) != version(sys.executable)]


@pytest.mark.heavy
@pytest.mark.parametrize("first", [False, True], ids=["the other goes on", "the other begins"])
@pytest.mark.parametrize("place", PLACES)
def test_an_epoch_is_finished_under_another_spark(tmp_path: Path, place: str, first: bool) -> None:
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
