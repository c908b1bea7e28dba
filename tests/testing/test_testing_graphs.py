"""Graphs nobody thought of: whatever stages stand on each other, in whatever disorder rows come and whatever crashes,
each stream has after each epoch what a few lines of plain Python say."""

from __future__ import annotations

from typing import Any

import pytest
from graph_model import SCHEMA, SOURCES, Choice, Oracle, as_dicts, counted, draw, epochs, graphs, wired
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast import testing
from holdfast.container.slices import HostedStage
from holdfast.log.records import Prepare
from holdfast.state.copies import header_of
from holdfast.state.slice import NEVER, EpochTime, SliceState
from holdfast.testing import PLACES

really_advance = HostedStage.advance
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


@settings(max_examples=25, deadline=None)
@given(graphs(), epochs())
def test_a_slice_may_pass_over_what_does_not_concern_it(chosen: list[Choice], rows: list[dict[str, Any]]) -> None:
    """Where an epoch is passed over, applying it would have changed nothing, put out nothing and counted nothing."""
    if not wired(chosen):
        return
    passed = 0

    def advance(stage: HostedStage, state: SliceState, prepare: Prepare, parts: Any, peers: Any) -> None:
        nonlocal passed
        if not parts and stage.still(prepare):
            passed += 1
            epoch, name = prepare.fence.epoch, stage.plan.name
            known = prepare.watermark_after.get(name, NEVER)
            nothing = [None for _ in stage.plan.inputs]
            state.apply(epoch, *nothing, time=EpochTime(known, known, 1000 * prepare.clock), peers=peers)
            assert (state.changed, dict(state.counts)) == (0, {})
            assert state.outputs(epoch, "changelog").num_rows == 0
            for table in range(len(stage.operator.layouts)):
                delta = state.delta(epoch - 1, epoch, table=table) if epoch > 1 else None
                assert delta is None or delta.num_rows == 0 or header_of(delta).full
            state.undo()
        really_advance(stage, state, prepare, parts, peers)

    job = testing.Job()
    drawn = draw(*(job.read(SCHEMA, name=name) for name in SOURCES), chosen)
    for number, stream in enumerate(drawn.streams):
        stream.write("noop", name=f"sink{number}")
    with pytest.MonkeyPatch.context() as patch, job.start(slices=3) as run:
        patch.setattr(HostedStage, "advance", advance)
        nothing_came: dict[str, list[Any]] = {name: [] for name in SOURCES}
        for given_rows in [*rows, nothing_came]:
            run.epoch({name: as_dicts(given_rows[name]) for name in SOURCES})
    assert passed, "without rows, and without time that moves on, there is something to pass over"
