"""``run.update`` on a job: every row by the version that its epoch names, over kills and starts.

The oracle is a batch over the rows of each epoch's files, as for hubs.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from driver import source
from kit import NEVER, until
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession
from test_blocks import dying
from test_live_changes import Counting, Doubling, Feed, Touchy, state, wait_whole

import holdfast as hf
from holdfast.driver import loop
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark
register_pickle_by_value(sys.modules[Doubling.__module__])

SUMS = "SELECT k, count(*) AS n, sum(v)::BIGINT AS total FROM rows WHERE {} GROUP BY k"


def draw(base: Path, spark: SparkSession, function: type = Doubling, *, first: str = "v > 0") -> hf.Job:
    job = hf.Job("shop", spark, store=base / "store")
    rows = job.read(source(spark, str(base / "input")), name="rows")
    rows.where(first).key_by("k", name="sums").agg(n=hf.count(), total=hf.sum("v"))
    rows.where("v > 0").key_by("g", name="mine").process(function, "total bigint").write("noop")
    rows.select("k", "g").key_by("k", "g", name="pairs").distinct().key_by("g", name="groups").agg(n=hf.count())
    rows.key_by("g", name="top").top_k(3, by="v")
    return job


def test_what_does_not_touch_sparks_query_changes_any_job(tmp_path: Path, spark: SparkSession) -> None:
    feed = Feed(tmp_path)
    with draw(tmp_path, spark).start(containers=2, slices=4) as run:
        feed.give(run)
        with pytest.raises(hf.PlanError, match=r"stage 'sums' is in Spark's query over 'rows'") as refused:
            run.update("sums", where="v > 5")
        assert "live_filters=True" in str(refused.value)
        with pytest.raises(hf.PlanError, match=r"`x` cannot be resolved") as unknown:
            run.update("groups", where="x > 5")
        assert "The columns there are: k, g." in str(unknown.value)
        with pytest.raises(hf.PlanError, match="There is no stage 'late'"):
            run.update("late", reset=True)
        doubled = run.update("mine", parameters={"times": 2}).epoch
        feed.give(run)
        narrowed = run.update("groups", where="k % 2 = 0").epoch
        run.update("top", k=1)
        feed.give(run)
        run.kill(run.status().containers[0].name)
        counted = run.update("mine", function=Counting).epoch
        emptied = run.update("sums", reset=True).epoch
        feed.give(run)
        wait_whole(run)
        told = [change.text for change in run.history()]
        assert told[-2:] == ["stage 'mine': its function is another", "stage 'sums': it is emptied"]
    mine = (
        f"SELECT g, sum(CASE WHEN e < {doubled} THEN v WHEN e < {counted} THEN 2 * v ELSE 1 END)::BIGINT AS total "
        "FROM rows WHERE v > 0 GROUP BY g"
    )
    groups = (
        "SELECT g, count(*) AS n FROM (SELECT k, g, min(e) AS e FROM rows GROUP BY k, g) "
        f"WHERE e < {narrowed} OR k % 2 = 0 GROUP BY g"
    )
    truths = {"mine": mine, "groups": groups, "sums": SUMS.format(f"v > 0 AND e >= {emptied}")}

    def right(run: hf.Run) -> None:
        for name, truth in truths.items():
            state(run, name, truth, feed.rows())
        assert {row["rank"] for row in run.state("top").to_arrow().to_pylist()} == {1}

    job = draw(tmp_path, spark)
    with job.start(containers=2, slices=4) as run:
        assert len([event for event in run.status().events if "kept from an earlier run" in event.text]) == 4
        right(run)
        feed.give(run)
        run.kill(run.status().containers[1].name)
        wait_whole(run)
        right(run)
    with job.start(containers=1, slices=4) as run:  # the same drawing once more
        feed.give(run)
        right(run)
    with pytest.raises(hf.StoreError, match="so it was changed while job 'shop' ran, and the program draws"):
        draw(tmp_path, spark, Counting).start(containers=1, slices=4)


def test_a_driver_that_dies_when_only_a_block_names_a_change_has_made_it_whole(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch may be taken in between the graph and the epoch without rows that comes for it: here none comes."""
    feed = Feed(tmp_path)
    with draw(tmp_path, spark).start(containers=1, slices=4) as run, monkeypatch.context() as patched:
        feed.give(run, 2)
        patched.setattr(loop.Shell, "hurry", lambda shell: None)
        with ThreadPoolExecutor(1) as pool:
            emptied = pool.submit(run.update, "sums", reset=True)
            until(lambda: run._live.changes.version == 1 or emptied.done(), NEVER, "the change is in the store")
            with dying(patched, "after-block", 3):
                (tmp_path / "all/0002.parquet").rename(tmp_path / "input/0002.parquet")
                with pytest.raises(hf.HoldfastError):
                    emptied.result()
    feed.given = 3
    ledger = Ledger(Store(str(tmp_path / "store")), "main")
    last, named = ledger.last_prepared(), ledger.get_block(3)
    assert last == (2, last[1] if last else 0)
    assert named is not None
    assert named.graph == 1
    with draw(tmp_path, spark).start(containers=1, slices=4) as run:
        feed.give(run)
        state(run, "sums", SUMS.format("v > 0 AND e >= 3"), feed.rows())
        state(run, "groups", "SELECT g, count(DISTINCT k) AS n FROM rows GROUP BY g", feed.rows())


def test_filters_that_stand_behind_the_query(tmp_path: Path, spark: SparkSession) -> None:
    """Rows that the old filter dropped and columns that nobody read are there for the new one; a start that has filters
    in the query again keeps what was changed."""
    feed = Feed(tmp_path)
    with draw(tmp_path, spark).start(containers=2, slices=4) as run:
        feed.give(run)
    with draw(tmp_path, spark).start(containers=2, slices=4, live_filters=True) as run:
        feed.give(run)
        other = run.update("sums", where="t IS NOT NULL AND v % 3 = 0").epoch
        feed.give(run)
        run.kill(run.status().containers[0].name)
        feed.give(run)
        wait_whole(run)
        sums = SUMS.format(f"(e < {other} AND v > 0) OR (e >= {other} AND t IS NOT NULL AND v % 3 = 0)")
        state(run, "sums", sums, feed.rows())
    with draw(tmp_path, spark).start(containers=1, slices=4) as run:
        feed.give(run)
        state(run, "sums", sums, feed.rows())
    with draw(tmp_path, spark).start(containers=1, slices=4, updates="drop") as run:
        dropped = run.status().epoch + 1
        feed.give(run)
        assert run.history()[-1].text == "stage 'sums': its filter is t IS NOT NULL AND v % 3 = 0"
        sums = SUMS.format(
            f"((e < {other} OR e >= {dropped}) AND v > 0) OR "
            f"(e >= {other} AND e < {dropped} AND t IS NOT NULL AND v % 3 = 0)"
        )
        state(run, "sums", sums, feed.rows())


def test_a_function_that_raises_can_be_dropped_again(tmp_path: Path, spark: SparkSession) -> None:
    """The epoch that it raised in is finished by the function that the program has."""
    feed = Feed(tmp_path)
    with draw(tmp_path, spark, Touchy).start(containers=1, slices=4) as run:
        feed.give(run)
        run.update("mine", parameters={"bad": True})
        with pytest.raises(hf.FunctionError, match="no more of"):
            feed.give(run)
    with (
        pytest.raises(hf.FunctionError, match="no more of"),
        draw(tmp_path, spark, Touchy).start(containers=1, slices=4) as run,
    ):
        run.process_all_available()
    with draw(tmp_path, spark, Touchy).start(containers=1, slices=4, updates="drop") as run:
        run.process_all_available()
        feed.give(run)
        state(run, "mine", "SELECT g, sum(v)::BIGINT AS total FROM rows WHERE v > 0 GROUP BY g", feed.rows())
