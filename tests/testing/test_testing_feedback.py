"""What an epoch feeds back to the functions of the next one, without Spark: against plain Python, whatever crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from graph_model import SCHEMA as GRAPH
from graph_model import SOURCES, Choice, Oracle, as_dicts, counted, draw, epochs, graphs, wired
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import testing
from holdfast.testing import PLACES

SCHEMA = "k string, v bigint"
CRASHES = st.lists(st.none() | st.sampled_from(PLACES), min_size=5, max_size=5)


class Favours:
    """Adds up what a key has while it is among the best of the epoch before."""

    favoured = hf.states.value("bigint", default=0)

    def rows(self, key: str, rows: Sequence[Mapping[str, Any]], context: Any) -> Iterable[dict[str, Any]]:
        best = {row["k"]: row["total"] for row in context.feedback["best"]}
        if key in best:
            context.state.favoured += sum(row["v"] for row in rows)
        yield {
            "k": key,
            "favoured": context.state.favoured,
            "best": best.get(key),
            "news": len(context.feedback["news"]),
        }


class Above:
    """The same on a second level."""

    def rows(self, key: str, rows: Sequence[Mapping[str, Any]], context: Any) -> Iterable[dict[str, Any]]:
        yield {"k": key, "said": ",".join(row["k"] for row in context.feedback["best"])}


def drawn() -> tuple[testing.Job, hf.Stream, hf.Stream]:
    job = testing.Job()
    rows = job.read(SCHEMA, name="rows")
    sums = rows.key_by("k", name="sums").agg(total=hf.sum("v"))
    sums.top_k(2, by="total", name="best").feedback("best", mode="complete")
    sums.where("total % 2 = 0").feedback("news")
    favours = rows.key_by("k", name="favours").process(Favours, "k string, favoured bigint, best bigint, news bigint")
    return job, favours, favours.key_by("k", name="above").process(Above, "k string, said string")


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-5, 9)), max_size=6), min_size=1, max_size=5),
    CRASHES,
)
def test_functions_see_what_the_epoch_before_fed_back(
    given_rows: list[list[tuple[str, int]]], crashes: list[str | None]
) -> None:
    job, favours, above = drawn()
    totals: Counter[str] = Counter()
    favoured: Counter[str] = Counter()
    best: dict[str, int] = {}
    news = 0
    with job.start(slices=3) as run:
        for rows, crash in zip(given_rows, crashes, strict=False):
            run.epoch([{"k": k, "v": v} for k, v in rows], crash=crash)
            changed = {k for k, _ in rows}
            for k, v in rows:
                favoured[k] += v if k in best else 0
            assert {row["k"]: row for row in run.last(favours)} == {
                k: {"k": k, "favoured": favoured[k], "best": best.get(k), "news": news} for k in changed
            }
            # In the order of their columns: the rank is the first of them.
            assert {row["said"] for row in run.last(above)} == ({",".join(best)} if changed else set())
            for k, v in rows:
                totals[k] += v
            best = dict(sorted(totals.items(), key=lambda one: (-one[1], one[0]))[:2])
            news = sum(totals[k] % 2 == 0 for k in changed)


class Told:
    """Says all that it sees fed back, by each name."""

    def rows(self, key: str, rows: Any, context: Any) -> Iterable[dict[str, Any]]:
        for name, fed in context.feedback.items():
            for row in fed:
                yield {"name": name, **row} if "ts" in row else {"name": name, **row, "ts": None}


@settings(max_examples=25, deadline=None)
@given(graphs(), epochs(), CRASHES)
def test_any_stream_of_any_graph_is_fed_back_as_it_is(
    chosen: list[Choice], rows: list[dict[str, Any]], crashes: list[str | None]
) -> None:
    if not wired(chosen):
        return
    job, oracle = testing.Job(), Oracle(chosen)
    one, two = (job.read(GRAPH, name=name) for name in SOURCES)
    streams = draw(one, two, chosen)
    fed = {}
    for number, stream in enumerate(streams.streams):
        table = oracle.nodes[number].is_table
        if number < len(SOURCES):
            stream.write("noop", name=f"sink{number}")
        elif not table or stream._complete:
            stream.feedback(f"f{number}", mode="complete" if table else "update")
            fed[number] = f"f{number}"
    told = one.key_by("k", name="told").process(Told, f"name string, {GRAPH}")
    before: list[Counter[Any]] = []
    with job.start(slices=3) as run:
        for given_rows, crash in zip(rows, crashes, strict=False):
            run.epoch({name: as_dicts(given_rows[name]) for name in SOURCES}, crash=crash)
            keys = {row[0] for row in given_rows["one"]}
            for number, name in fed.items():
                seen = [row for row in run.last(told) if row["name"] == name]
                if oracle.nodes[number].is_table:
                    for row in seen:
                        del row["ts"]
                expected = before[number] if before else Counter()
                assert counted(seen) == Counter({row: len(keys) * n for row, n in expected.items()}), number
            before = oracle.epoch(given_rows)


def test_an_epoch_that_feeds_back_too_much_never_was() -> None:
    job = testing.Job()
    rows = job.read("k string, text string", name="rows")
    rows.key_by("k", name="texts").agg(text=hf.last("text")).feedback("texts", mode="complete")

    class Lengths:
        def rows(self, key: str, rows: Any, context: Any) -> Iterable[dict[str, Any]]:
            yield {"n": sum(len(row["text"]) for row in context.feedback["texts"])}

    lengths = rows.key_by("k", name="lengths").process(Lengths, "n bigint")
    with job.start() as run:
        run.epoch([{"k": "a", "text": "x" * 30_000}])
        with pytest.raises(hf.SinkError, match="Feedback 'texts' of epoch 2 is"):
            run.epoch([{"k": "b", "text": "y" * 40_000}])
        assert run.epoch([{"k": "c", "text": "z"}]) == 2
        assert run.last(lengths) == [{"n": 30_000}]


def test_what_cannot_be_fed_back_is_refused_where_it_is_drawn() -> None:
    job = testing.Job()
    rows = job.read(SCHEMA, name="rows")
    with pytest.raises(hf.PlanError, match="Only what a stage puts out can be fed back"):
        rows.feedback("rows")
    sums = rows.key_by("k", name="sums").agg(total=hf.sum("v"))
    with pytest.raises(hf.PlanError, match="'a b' cannot be a feedback's name"):
        sums.feedback("a b")
    with pytest.raises(hf.PlanError, match="no feedback of mode 'append'"):
        sums.feedback("sums", mode="append")
    with pytest.raises(hf.PlanError, match="Only rows that a stage still holds"):
        rows.key_by("k", name="seen").distinct().feedback("seen", mode="complete")
    sums.feedback("sums")
    with pytest.raises(hf.PlanError, match="Two sinks are named 'feedback:sums'"):
        sums.feedback("sums")


def test_a_name_that_nothing_is_fed_back_by_is_an_error_that_says_what_is() -> None:
    job = testing.Job()
    rows = job.read(SCHEMA, name="rows")
    rows.key_by("k", name="sums").agg(total=hf.sum("v")).feedback("sums")

    def wrong(key: str, rows: Any, context: Any) -> dict[str, Any]:
        return {"n": len(context.feedback["sum"])}

    rows.key_by("k", name="wrong").process(wrong, "n bigint")
    with job.start() as run, pytest.raises(hf.FunctionError, match="nothing is fed back as 'sum'; what is: sums"):
        run.epoch([{"k": "a", "v": 1}])
