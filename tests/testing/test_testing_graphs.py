"""Graphs nobody thought of: whatever stages stand on each other, in whatever disorder rows come and whatever crashes,
each stream has after each epoch what a few lines of plain Python say."""

from __future__ import annotations

from typing import Any

from graph_model import SCHEMA, SOURCES, Choice, Oracle, as_dicts, counted, draw, epochs, graphs, wired
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast import testing
from holdfast.testing import PLACES

CRASHES = st.lists(st.none() | st.sampled_from(PLACES), min_size=5, max_size=5)


@settings(max_examples=50, deadline=None)
@given(graphs(), epochs(), CRASHES)
@example(
    [Choice("window", reads=1, where=True), Choice("window", size=6), Choice("sums"), Choice("best")],
    [{"one": [("a", 0, 1, 1), ("b", 1, 2, 3)], "two": []}, {"one": [("a", 0, 3, 20)], "two": [("a", 1, 1, 9)]}],
    ["mid-apply", "all", None, None, None],
)
def test_a_graph_and_its_oracle(chosen: list[Choice], rows: list[dict[str, Any]], crashes: list[str | None]) -> None:
    if not wired(chosen):
        return
    job, oracle = testing.Job(), Oracle(chosen)
    one, two = (job.read(SCHEMA, name=name) for name in SOURCES)
    drawn = draw(one, two, chosen)
    for number, stream in enumerate(drawn.streams):
        stream.write("noop", name=f"sink{number}")
    with job.start(slices=3) as run:
        for given_rows, crash in zip(rows, crashes, strict=False):
            run.epoch({name: as_dicts(given_rows[name]) for name in SOURCES}, crash=crash)
            expected = oracle.epoch(given_rows)
            for number, (stream, node) in enumerate(zip(drawn.streams, oracle.nodes, strict=True)):
                sunk = counted(run.sink(f"sink{number}")[-1])
                if node.is_table:  # its sink gets what is new in it
                    assert counted(run.rows(stream)) == expected[number], f"stream {number} of {wired(chosen)}"
                    assert sunk <= expected[number], f"stream {number} of {wired(chosen)}"
                else:
                    assert sunk == counted(run.last(stream)) == expected[number], f"stream {number} of {wired(chosen)}"
