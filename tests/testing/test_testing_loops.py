"""Loops without Spark: fixpoints of random graphs against oracles, with slices lost on the way; and what is refused."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from loop_oracles import components, page_ranks

import holdfast as hf
from holdfast import testing

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def example(name: str) -> ModuleType:
    return importlib.import_module(name)


def crash(chance: random.Random) -> str | None:
    return chance.choice([None, *testing.PLACES])


@pytest.mark.parametrize("seed", range(4))
def test_components_of_a_graph_that_grows_whatever_is_lost_on_the_way(seed: int) -> None:
    chance = random.Random(seed)
    job = testing.Job()
    bundles = example("product_bundles").build(job, job.read("product bigint, other bigint"))
    pairs: list[tuple[int, int]] = []
    with job.start(slices=chance.choice([1, 3, 8])) as run:
        for _ in range(3):
            new = [(chance.randrange(60), chance.randrange(60)) for _ in range(15)]
            pairs += new
            run.epoch([{"product": one, "other": other} for one, other in new], crash=crash(chance))
            if (place := crash(chance)) is not None:
                run.crash(place)  # in the middle of what goes round
            run.settle()
            assert {row["product"]: row["bundle"] for row in run.state(bundles)} == components(pairs)
            assert run.settle() == 0
        newest = {row["product"]: row["bundle"] for row in run.rows(bundles.output("bundles"))}
        assert newest == components(pairs)


@pytest.mark.parametrize("seed", range(2))
def test_page_ranks_of_a_graph_that_grows(seed: int) -> None:
    example_ = example("page_rank")
    chance = random.Random(seed)
    job = testing.Job()
    ranks = example_.build(job, job.read("page bigint, target bigint"))
    links: list[tuple[int, int]] = []
    with job.start() as run:
        for _ in range(3):
            new = [(chance.randrange(15), chance.randrange(15)) for _ in range(12)]
            links += new
            run.epoch([{"page": page, "target": target} for page, target in new], crash=crash(chance))
            assert run.settle() > 5
            truth = page_ranks(links, example_.DAMPING)
            found = {row["page"]: row["rank"] for row in run.state(ranks)}
            assert found.keys() == truth.keys()
            off = sum(abs(found[page] - truth[page]) for page in truth)
            assert off <= len(truth) * example_.TOLERANCE / (1 - example_.DAMPING)


class Onward:
    """Passes a number on, one less, to the key that is one further."""

    seen = hf.states.value("bigint", default=0)

    def rows(self, key: int, rows: list[dict[str, Any]], context: Any) -> Any:
        context.state.seen += len(rows)
        for row in rows:
            if row["left"] > 0:
                yield {"k": key + 1, "left": row["left"] - 1}


def passing(job: testing.Job, **options: Any) -> tuple[hf.StageStream, hf.LoopStream]:
    rows = job.read("key bigint, lives bigint", name="rows")
    loop = job.loop("k bigint, left bigint", name="on", **options)
    stage = loop.union(rows).key_by("k", name="onward").process(Onward, "k bigint, left bigint")
    loop.close(stage)
    return stage, loop


def test_rows_come_in_the_epoch_after_the_one_that_put_them_out() -> None:
    job = testing.Job()
    stage, _ = passing(job)
    with job.start() as run:
        run.epoch(rows=[{"key": 0, "lives": 3}])
        assert run.last(stage) == [{"k": 1, "left": 2}]
        run.epoch(rows=[{"key": 7, "lives": 0}])  # rows of a source take along what goes round
        assert run.last(stage) == [{"k": 2, "left": 1}]
        assert run.settle() == 2
        assert [(row["k"], row["seen"]) for row in run.state(stage)] == [(0, 1), (1, 1), (2, 1), (3, 1), (7, 1)]


def test_a_loop_on_its_way_through_two_levels_and_one_over_a_stage() -> None:
    """The loop's rows join those of a stage, on the second level; its own steps count."""
    job = testing.Job()
    first = job.read("k bigint, left bigint").key_by("k", name="first").process(Onward, "k bigint, left bigint")
    loop = job.loop("k bigint, left bigint")
    second = first.union(loop.where("k < 5")).key_by("k", name="second").process(Onward, "k bigint, left bigint")
    loop.close(second.select("k", "left"))
    with job.start() as run:
        run.epoch([{"k": 0, "left": 6}], crash="mid-apply")
        run.crash("all")
        run.settle()
        assert [row["k"] for row in run.state(second)] == [1, 2, 3, 4]
        assert run.settle() == 0


def test_what_goes_round_does_not_move_event_time_on_and_may_be_late() -> None:
    class Later:
        def rows(self, key: int, rows: list[dict[str, Any]], context: Any) -> Any:
            for row in rows:
                if row["left"] > 0:
                    yield {"k": key, "left": row["left"] - 1, "ts": row["ts"]}

    job = testing.Job()
    rows = job.read("k bigint, left bigint, ts timestamp")
    loop = job.loop("k bigint, left bigint, ts timestamp")
    both = rows.union(loop)
    loop.close(both.key_by("k", name="later").process(Later, "k bigint, left bigint, ts timestamp"))
    windows = both.key_by("k", name="windows").window(hf.tumbling("10 s"), time="ts").agg(n=hf.count())
    with job.start() as run:
        run.epoch([{"k": 1, "left": 2, "ts": "2026-01-01 00:00:05"}])
        run.epoch([{"k": 2, "left": 0, "ts": "2026-01-01 00:00:20"}])
        assert run.watermark(windows) == testing.at("2026-01-01 00:00:20")
        assert run.last(windows) == [
            {
                "k": 1,
                "window_start": testing.at("2026-01-01 00:00:00"),
                "window_end": testing.at("2026-01-01 00:00:10"),
                "n": 2,
            }
        ]
        run.settle()
        assert run.watermark(windows) == testing.at("2026-01-01 00:00:20")
        assert run.counts(windows) == {"late": 1}


def test_a_loop_that_never_runs_dry_is_told() -> None:
    job = testing.Job()
    passing(job, max_rounds=5)
    with job.start() as run:
        run.epoch(rows=[{"key": 0, "lives": 100}])
        with pytest.raises(hf.PlanError, match="Loop 'on' has not run dry in 5 epochs") as told:
            run.settle()
        assert "max_rounds" in told.value.todo


def test_explain_shows_loops(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = testing.Job()
    passing(job)
    job.explain(str(tmp_path / "plan.svg"))
    told = capsys.readouterr().out
    assert "<- (loop 'on' + source 'rows' . union)" in told
    assert "loops\n  on <- onward\nsinks" in told
    assert "1 stages on 1 levels, 0 sinks" in told
    assert "loop, the epoch before" in (tmp_path / "plan.svg").read_text()


def refused(job: testing.Job, match: str) -> None:
    with pytest.raises(hf.PlanError, match=match):
        job.plan()


def test_what_cannot_be_a_loop_is_told_by_its_name() -> None:
    job = testing.Job()
    stage, loop = passing(job)
    for stream, match in [
        (stage, "closed twice"),
        (job._stage_stream(job._stages[0]), "closed twice"),
    ]:
        with pytest.raises(hf.PlanError, match=f"Loop 'on' is {match}"):
            loop.close(stream)
    with pytest.raises(hf.PlanError, match="Two loops are named 'on'"):
        job.loop("k bigint", name="on")
    other = job.loop("k bigint, left bigint", name="other")
    refused(job, "Loop 'other' is never closed")
    with pytest.raises(hf.PlanError, match=r"Loop 'other' is of \(k bigint, left bigint\), and is closed with \(k big"):
        other.close(stage.select("k"))
    with pytest.raises(hf.PlanError, match="rows that no stage has put out"):
        other.close(loop)
    with pytest.raises(hf.PlanError, match="can be taken back"):
        other.close(stage.key_by("k", name="sums").agg(left=hf.sum("left")))
    with pytest.raises(hf.PlanError, match="closed with a stream of another job"):
        other.close(passing(testing.Job())[0])
    with pytest.raises(hf.PlanError, match="A sink cannot have the rows of loop 'other'"):
        other.write("noop")
    other.close(stage)
    refused(job, "No stage reads loop 'other'")
    for name, rounds, match in [("a b", None, "cannot be a loop's name"), ("c", 0, "max_rounds must be at least 1")]:
        with pytest.raises(hf.PlanError, match=match):
            job.loop("k bigint", name=name, max_rounds=rounds)


def test_a_stage_that_has_nothing_but_a_loop_would_never_have_a_row() -> None:
    job = testing.Job()
    rows = job.read("k bigint, left bigint").key_by("k", name="first").process(Onward, "k bigint, left bigint")
    loop = job.loop("k bigint, left bigint")
    second = loop.key_by("k", name="second").process(Onward, "k bigint, left bigint")
    loop.close(second.union(rows))
    refused(job, "Stage 'second' reads loop 'loop' and nothing else")


def test_a_union_with_a_loop_is_of_one_kind_of_rows() -> None:
    job = testing.Job()
    rows = job.read("k bigint, left bigint")
    loop = job.loop("k bigint, left bigint")
    with pytest.raises(hf.PlanError, match=r"needs the same types on both sides, not \(k bigint\) and \(left int\)"):
        rows.select("k").union(job.loop("left int", name="other"))
    sums = rows.key_by("k", name="sums").agg(left=hf.sum("left"))
    with pytest.raises(hf.PlanError, match="are never taken back, and these can be"):
        sums.union(loop)
