"""The power goes at any moment: what is on the disk then is enough for the next start, and the answer is right."""

from __future__ import annotations

import faulthandler
import itertools
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import Drill, finish
from power import CannotWatch, Recording, build_shim, rebuild, what_differs
from pyspark.sql import SparkSession

from holdfast.log.blocks import batch_at
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark

ROOTS = ("store", "out")
SPARK = {
    # Its compact files, and its deleting of what they replace, come early.
    "spark.sql.streaming.fileSource.log.compactInterval": "3",
    "spark.sql.streaming.fileSource.log.cleanupDelay": "0",
    "spark.sql.streaming.fileSink.log.compactInterval": "3",
    "spark.sql.streaming.fileSink.log.cleanupDelay": "0",
    "spark.sql.streaming.minBatchesToRetain": "2",
}


class PowerDrill(Drill):
    def check(self) -> None:
        if self.config["shape"] == "sources":
            self.check_state()
        else:
            super().check()

    def epochs(self) -> list[list[str]]:
        """By our own commits: Spark deletes its offsets early here."""
        inputs = sorted(str(path) for path in (self.base / "input").glob("*.parquet"))
        ledger = Ledger(Store(str(self.base / "store")), "main")
        commits = [ledger.get_commit(epoch) for epoch in range(1, self.report["epoch"] + 1)]
        # One offset behind the other; all sources have as many files, and every epoch takes some of each.
        first = json.JSONDecoder().raw_decode
        batches = [batch_at(ledger, one.position) for one in commits if one is not None]
        ends = [first(batch.offsets)[0]["logOffset"] + 1 for batch in batches if batch is not None]
        assert len(ends) == len(commits)
        assert ends[-1] == self.files, "a file was not taken"
        return [inputs[begin:end] for begin, end in itertools.pairwise([0, *ends])]


@pytest.fixture
def compacting(spark: SparkSession) -> Iterator[SparkSession]:
    for name, value in SPARK.items():
        spark.conf.set(name, value)
    yield spark
    for name in SPARK:
        spark.conf.unset(name)


def recorded(drill: Drill, shim: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A driver that runs to its end, and every moment of it."""
    recording = Recording(drill.base, ROOTS, shim, scratch)
    with monkeypatch.context() as patched:
        for name, value in recording.environment.items():
            patched.setenv(name, value)
        process = drill.start(spark=SPARK)
    ended = finish(process, 300)
    assert ended.code == 0, ended.error
    recording.end()
    return recording


@pytest.mark.drivers
@pytest.mark.timeout(4 * 3600)  # 200 of them take more than an hour
@pytest.mark.parametrize(
    "shape", ["one", *(pytest.param(more, marks=pytest.mark.heavy) for more in ("sources", "graph"))]
)
def test_power_cuts(
    tmp_path: Path, compacting: SparkSession, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config, shape: str
) -> None:
    """``--cuts N`` moments, ``--first-seed S``; every fifth time it goes again while the next driver mends and runs."""
    faulthandler.cancel_dump_traceback_later()  # which would end this as it ends what is stuck
    try:
        shim = build_shim(tmp_path)
    except CannotWatch as reason:
        pytest.skip(str(reason))
    base = tmp_path / "job"
    drill = PowerDrill(base, files=8, rows=400, keys=60, config={"shape": shape, "store_every": 3})
    run = recorded(drill, shim, tmp_path / "first", monkeypatch)
    drill.check()
    assert {note.what for note in run.notes} >= {"create", "rename", "link", "unlink", "sync", "sync-folder"}
    cuts, first = pytestconfig.getoption("--cuts"), pytestconfig.getoption("--first-seed")
    for seed in range(first, first + cuts):
        draw = random.Random(seed)
        share = len(run.notes) / cuts  # all of the run, in turn
        moment = round((seed - first + draw.random()) * share)
        files, folders = run.after_a_cut(moment, draw)
        rebuild(base, ROOTS, files, folders)
        story = f"seed {seed}, moment {moment} of {len(run.notes)}; torn: {what_differs(files, run)}"
        if cuts >= 10 and seed % 5 == 0:
            again = recorded(drill, shim, tmp_path / f"again{seed}", monkeypatch)
            moment = draw.randint(0, len(again.notes))
            files, folders = again.after_a_cut(moment, draw)
            rebuild(base, ROOTS, files, folders)
            story += f"; then moment {moment} of {len(again.notes)}; torn: {what_differs(files, again)}"
            shutil.rmtree(tmp_path / f"again{seed}")
        print(story)
        drill.run_here(compacting, monkeypatch)
        drill.check()
