"""An update of a stage that is one with another job's: it goes on from what both held, the other as it was.

The oracle is a batch over the rows of each epoch's files, by the filter that was in force in it for each of the two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driver import source
from kit import NEVER, equal, finish, write_files
from pyspark.sql import SparkSession
from split_driver import FILTER, draw
from test_live_changes import Feed, rows_by_epoch, state, wait_whole

import holdfast as hf
from holdfast.driver.live_changes import LiveChanges
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark

SUMS = "SELECT k, count(*) AS n, sum(v)::BIGINT AS total FROM rows WHERE {} GROUP BY k"
SIZES = "SELECT n, count(*) AS keys, sum(total)::BIGINT AS total FROM ({}) GROUP BY n"
ONE, TWO = SUMS.format("true"), SUMS.format("e < {0} OR ({1})")


def written(path: Path, truth: str, rows: pa.Table) -> None:
    """A sink has the newest row of every key."""
    newest = "row_number() OVER (PARTITION BY k ORDER BY _epoch DESC) = 1"
    equal(f"SELECT * EXCLUDE (_epoch) FROM out QUALIFY {newest}", truth, out=pq.read_table(path), rows=rows)


def stored(run: hf.Run) -> list[str]:
    return sorted(stage.name for stage in run._plan.stages)


def test_a_shared_stage_is_split_and_both_go_on_whoever_dies(tmp_path: Path, spark: SparkSession) -> None:
    feed = Feed(tmp_path)
    hub = draw(tmp_path, spark)
    with hub.start(containers=2, slices=4) as run:
        feed.give(run, 2)
        assert stored(run) == ["one/sums", "two/sizes"]
        split = run.update("two/sums", where=FILTER)
        two = TWO.format(split.epoch, FILTER)

        def check(run: hf.Run) -> None:
            rows = feed.rows()
            state(run, "one/sums", ONE, rows)
            state(run, "two/sums", two, rows)
            state(run, "two/sizes", SIZES.format(two), rows)
            written(tmp_path / "one", ONE, rows)
            written(tmp_path / "two", two, rows)

        assert stored(run) == ["one/sums", "two/sizes", "two/sums"]
        state(run, "two/sums", two, feed.rows())  # from the first moment on
        feed.give(run)
        check(run)
        run.kill(run.status().containers[0].name)
        feed.give(run)
        wait_whole(run)
        check(run)
        # A third one is equal to the first as it is drawn; emptied alone, it is of its own, too.
        third = hub.job("three")
        sums = third.stream("rows").key_by("k", name="sums").agg(n=hf.count(), total=hf.sum("v"))
        run.add(third)
        assert stored(run) == ["one/sums", "two/sizes", "two/sums"]
        emptied = run.update(sums, reset=True).epoch
        feed.give(run)
        three = SUMS.format(f"e >= {emptied}")
        state(run, "three/sums", three, feed.rows())
        assert run.state(sums).to_arrow().num_rows == run.state("three/sums").to_arrow().num_rows
        check(run)
    hub = draw(tmp_path, spark)
    hub.job("three").stream("rows").key_by("k", name="sums").agg(n=hf.count(), total=hf.sum("v"))
    hub.job("four").stream("rows").key_by("k", name="sums").agg(n=hf.count(), total=hf.sum("v"))
    with hub.start(containers=1, slices=4) as run:  # nothing is one again that is not the same
        assert stored(run) == ["one/sums", "three/sums", "two/sizes", "two/sums"]
        feed.give(run)
        check(run)
        state(run, "three/sums", three, feed.rows())
        state(run, "four/sums", ONE, feed.rows())
        run.remove("one")
        run.remove("four")
        assert stored(run) == ["three/sums", "two/sizes", "two/sums"]
        feed.give(run)
        run.kill(run.status().containers[0].name)  # from the log: by what is gone
        feed.give(run)
        state(run, "two/sums", two, feed.rows())
        state(run, "two/sizes", SIZES.format(two), feed.rows())
        state(run, "three/sums", three, feed.rows())
    hub = draw(tmp_path, spark)
    with hub.start(containers=1, slices=4, updates="drop") as run:  # what is not the same stays apart
        dropped = run.status().epoch
        feed.give(run)
        rows = feed.rows()
        state(run, "two/sums", SUMS.format(f"e < {split.epoch} OR e > {dropped} OR ({FILTER})"), rows)


def test_what_cannot_be_split_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    write_files(tmp_path / "input", 1, 50, keys=5, seed=3)
    hub = hf.Hub("shop", spark, store=tmp_path / "store")
    hub.read(source(spark, str(tmp_path / "input")), name="rows")
    for name in ("one", "two"):
        sums = hub.job(name).stream("rows").key_by("k", name="sums").agg(n=hf.count())
        if name == "two":
            hub._jobs["two"].stream("rows").key_by("k", name="also").agg(n=hf.count())
        sums.key_by("n", name="sizes").agg(keys=hf.count())
        hub._jobs[name].stream("rows").key_by("g", name="plain").agg(n=hf.count())
    hub.job("named").stream("one/sums").where("n > 1").write("noop")
    with hub.start(containers=1, slices=2, safety=hf.Shards()) as run:
        run.process_all_available()
        with pytest.raises(hf.PlanError, match="job 'named' reads it as 'one/sums'"):
            run.update("one/sums", where="v > 0")
        with pytest.raises(hf.PlanError, match="and also 'two/also'"):
            run.update("two/sums", where="v > 0")
        run.remove("named")
        with pytest.raises(hf.PlanError, match=r"so is 'one/sizes', which reads it, with 'two/sizes'"):
            run.update("one/sums", where="v > 0")
        with pytest.raises(hf.PlanError, match="Stage 'one/sizes' reads rows that can be taken back"):
            run.update("one/sizes", reset=True)
        with pytest.raises(hf.PlanError, match=r"Shards.* 'two/plain' would be split off 'one/plain'"):
            run.update("two/plain", reset=True)


def test_who_reads_both_of_what_is_split_goes_on_with_both(tmp_path: Path, spark: SparkSession) -> None:
    """A job that asked for one's stage by its name, and for one of two's over the same."""
    feed = Feed(tmp_path)
    hub = hf.Hub("shop", spark, store=tmp_path / "store")
    hub.read(source(spark, str(tmp_path / "input")), name="rows")
    for name in ("one", "two"):
        pairs = hub.job(name).stream("rows").select("k", "g").key_by("k", "g", name="pairs").distinct()
        if name == "two":
            pairs.select("k").key_by("k", name="keys").distinct()
    three = hub.job("three")
    both = three.stream("one/pairs").select("k").union(three.stream("two/keys").select("k"))
    both.key_by("k", name="both").agg(n=hf.count())
    with hub.start(containers=1, slices=2) as run:
        feed.give(run)
        split = run.update("two/pairs", where="k < 0").epoch
        feed.give(run)
        rows = feed.rows()
        keys = f"SELECT DISTINCT k FROM rows WHERE e < {split}"
        state(run, "two/keys", keys, rows)
        truth = f"SELECT k, count(*) AS n FROM (SELECT k FROM rows GROUP BY k, g UNION ALL {keys}) GROUP BY k"
        state(run, "three/both", truth, rows)


def test_a_call_that_is_interrupted_while_it_waits_has_changed_what_it_changed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next epoch has the change, so the change after it must build on it."""
    feed = Feed(tmp_path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with draw(tmp_path, spark).start(containers=1, slices=2) as run:
        feed.give(run)
        with monkeypatch.context() as patch:
            patch.setattr(LiveChanges, "_await_begun", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run.update("two/sums", where=FILTER)
        graph = run._ledger.graph()
        assert graph is not None
        split = graph.splits_at
        one = TWO.format(run.update("one/sums", where="v % 3 = 0").epoch, "v % 3 = 0")
        feed.give(run)
        two, rows = TWO.format(split, FILTER), feed.rows()
        assert stored(run) == ["one/sums", "two/sizes", "two/sums"]
        for name, truth in (("one/sums", one), ("two/sums", two), ("two/sizes", SIZES.format(two))):
            state(run, name, truth, rows)


def test_a_hub_with_a_change_that_never_came_into_force_is_drawn_anew(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run ends between the change and the next epoch: started as it is, the new stage would begin without rows."""
    feed = Feed(tmp_path)
    hub = draw(tmp_path, spark)
    really = LiveChanges._follow

    def last(changes: LiveChanges, *given: Any) -> None:
        really(changes, *given)
        changes._run.shell.begin_no_other()

    def ended(*_: object) -> None:
        raise hf.HoldfastError("the run is over")

    with hub.start(containers=1, slices=2) as run:
        feed.give(run)
        with monkeypatch.context() as patch:
            patch.setattr(LiveChanges, "_follow", last)
            patch.setattr(LiveChanges, "_await_begun", ended)
            with pytest.raises(hf.HoldfastError, match="the run is over"):
                run.update("two/sums", where=FILTER)
    with pytest.raises(hf.PlanError, match="never came into force"):
        hub.start(containers=1, slices=2)
    with draw(tmp_path, spark).start(containers=1, slices=2) as run:
        assert stored(run) == ["one/sums", "two/sizes"]
        state(run, "two/sums", ONE, feed.rows())


@pytest.mark.heavy
def test_a_driver_dies_in_the_epoch_of_a_split(tmp_path: Path) -> None:
    """Its prepare is there: whoever comes next finishes it, and begins with the copy."""
    for folder in ("faults", "input"):
        (tmp_path / folder).mkdir()
    write_files(tmp_path / "all", 6, 300, keys=40, seed=11)
    for file in sorted((tmp_path / "all").iterdir())[:3]:
        file.rename(tmp_path / "input" / file.name)

    def start(how: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "HOLDFAST_FAULTS": str(tmp_path / "faults"), "DRILL": str(tmp_path / "config")}
        environment["PYSPARK_PYTHON"] = sys.executable
        command = [sys.executable, str(Path(__file__).with_name("split_driver.py")), str(tmp_path), how]
        out = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=environment, text=True, cwd=tmp_path, **out)

    (tmp_path / "faults" / "driver@after-prepare@4").touch()
    assert finish(start("update"), NEVER).killed
    ledger = Ledger(Store(str(tmp_path / "store")), "main")
    graph, last = ledger.graph(), ledger.last_committed()
    assert graph is not None
    assert last is not None
    assert (graph.splits, graph.splits_at, last.fence.epoch) == ({"two/sums": "one/sums"}, 4, 3)
    ended = finish(start("on"), NEVER)
    assert ended.code == 0, ended.error
    rows, told = rows_by_epoch(tmp_path), json.loads((tmp_path / "state.json").read_text())
    two = TWO.format(4, FILTER)
    for name, truth in (("one/sums", ONE), ("two/sums", two), ("two/sizes", SIZES.format(two))):
        held = pa.Table.from_pylist(told[name])
        equal("SELECT * FROM held", truth, held=held, rows=rows)
    written(tmp_path / "two", two, rows)
