"""A master with a bug stops at it, also where the interpreter was told to leave assertions out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark
DRIVER = """
import sys
from pathlib import Path

sys.path.insert(0, {here!r})
from driver import session

import holdfast as hf
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store
from holdfast.master.instructions import StoreCommit
from holdfast.master.machine import Master
from holdfast.driver import brain

if __debug__:
    sys.exit("to be run with -O")


class CommitsBeforeTheSinks(Master):
    def _advance_epoch(self, flight):
        if self.committed == 1 and flight.prepared and not flight.step and self._all_applied(1):
            self._step(StoreCommit(self.fence, flight.ranges))
        else:
            super()._advance_epoch(flight)


base = Path({base!r})
spark = session({{"master": "local[1]"}})
for master in (CommitsBeforeTheSinks, Master):
    brain.Master = master
    print("BEGINS", master.__name__)
    job = hf.Job("planted", spark, store=str(base / "store"))
    rows = spark.readStream.schema("k long").option("maxFilesPerTrigger", 1).parquet(str(base / "in"))
    counts = job.read(rows).key_by("k").agg(n=hf.count())
    counts.write("parquet", str(base / "out"))
    with job.start(containers=1, slices=2, trigger={{"availableNow": True}}) as run:
        try:
            run.await_termination()
        except hf.HoldfastError as error:
            print(type(error).__name__, error)
        print("rows", sorted((row.k, row.n, row._epoch) for row in spark.read.parquet(str(base / "out")).collect()))
        print("phase", run.status().phase)
        print("committed", Ledger(Store(str(base / "store")), "main").last_committed().fence.epoch)
"""


@pytest.mark.heavy  # a job for itself, since an interpreter is -O or not
def test_a_planted_bug_stops_the_run_under_python_O(tmp_path: Path) -> None:  # noqa: N802
    (tmp_path / "in").mkdir()
    for number in (1, 2, 3):
        pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "in" / f"{number}.parquet")
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(here=str(Path(__file__).parent), base=str(tmp_path)))

    done = subprocess.run([sys.executable, "-O", str(script)], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    _, told, mended = re.split(r"^BEGINS .*\n", done.stdout, flags=re.MULTILINE)
    assert "BugError The master has met something that cannot happen: a commit before every sink is done." in told
    assert "rows [(1, 1, 1), (2, 1, 1)]" in told
    assert "phase stopped" in told
    assert "committed 1" in told
    (story,) = re.findall(r"What led to it is in (\S+):", told)
    text = Path(story).read_text()
    assert Path(story).is_relative_to(tmp_path / "store" / "main")
    assert "→ EpochWanted(" in text
    assert "← StoreCommit(" in text.splitlines()[-1]
    assert "Error" not in mended
    assert "rows [(1, 1, 1), (1, 2, 2), (1, 3, 3), (2, 1, 1), (2, 2, 2), (2, 3, 3)]" in mended
    assert "committed 3" in mended
