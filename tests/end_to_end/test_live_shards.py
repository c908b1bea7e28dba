"""Stages that come and go while the state of a hub is in pieces on the ring: what is lost comes back from there, in
terms of whichever graph it was saved."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from test_live_changes import Feed, draw, state, wait_whole

import holdfast as hf

pytestmark = pytest.mark.spark

SAVED = 2.0
"""Seconds, after which the next epoch has everything saved."""
SUMS = "SELECT k, count(*) AS n, sum(v)::BIGINT AS total FROM rows GROUP BY k"
MINE = "SELECT g, sum(v)::BIGINT AS total FROM rows WHERE v > 0 GROUP BY g"


def lose_one(run: hf.Run, *, saved: bool = True) -> None:
    """What it had comes back from the ring, and not from the store, once it is ``saved``."""
    before = len(run.status().events)
    victim = max(run.status().containers, key=lambda one: (one.alive, one.slices))
    run.kill(victim.name)
    wait_whole(run)
    kinds = [event.kind for event in run.status().events[before:]]
    assert not saved or "activated" in kinds, [one.text for one in run.status().events[before:]]
    assert not saved or "restored" not in kinds, [one.text for one in run.status().events[before:]]


def test_stages_come_and_go_with_pieces_on_the_ring(tmp_path: Path, spark: SparkSession) -> None:
    feed = Feed(tmp_path)
    hub = draw(tmp_path, spark)
    with hub.start(containers=4, slices=8, safety=hf.Shards(m=2, n=2, every=f"{SAVED:g} s")) as run:
        feed.give(run, 2)
        wait_whole(run)  # pieces of every slice are on the ring, none with the stages to come
        late = hub.job("late")
        late.stream("rows").key_by("g", name="later").agg(n=hf.count(), most=hf.max("x"))
        first = late.stream("rows").select("k", "g").key_by("k", "g", name="pairs").distinct()
        first.key_by("g", name="groups").agg(n=hf.count())
        added = run.add(late).epoch
        feed.give(run)
        truths = {
            "totals/sums": SUMS,
            "own/mine": MINE,
            "late/later": f"SELECT g, count(*) AS n, max(x) AS most FROM rows WHERE e >= {added} GROUP BY g",
            "late/groups": f"SELECT g, count(DISTINCT k) AS n FROM rows WHERE e >= {added} GROUP BY g",
        }

        def right() -> None:
            for name, truth in truths.items():
                state(run, name, truth, feed.rows())

        lose_one(run, saved=False)  # at once
        right()
        time.sleep(SAVED)
        feed.give(run, 2)
        wait_whole(run)
        lose_one(run)  # with pieces of the new stages
        right()
        run.remove("totals")
        del truths["totals/sums"]
        feed.give(run)
        lose_one(run, saved=False)
        right()
        time.sleep(SAVED)
        feed.give(run)
        wait_whole(run)
        lose_one(run)
        right()
