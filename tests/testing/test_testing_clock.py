"""A timer by the clock fires in an epoch of its own when its time has come, though no row comes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import holdfast as hf
from holdfast import testing


class Reminder:
    asked = hf.states.value("bigint", default=0)

    def rows(self, key: int, rows: list[dict[str, Any]], context: Any) -> None:
        context.state.asked += len(rows)
        context.set_timer(context.clock + timedelta(seconds=5), kind="clock")

    def timer(self, key: int, time: Any, context: Any) -> list[dict[str, int]]:
        return [{"k": key, "asked": context.state.asked}]


def test_a_timer_by_the_clock_makes_a_tick() -> None:
    job = testing.Job()
    reminded = job.read("k bigint", name="rows").key_by("k").process(Reminder, "k bigint, asked bigint")
    with job.start() as run:
        run.epoch(rows=[{"k": 1}, {"k": 1}, {"k": 2}])
        assert run.advance("4 s") == 0
        assert run.rows(reminded) == []
        assert run.advance("2 s") == 1
        testing.equal(run.rows(reminded), [{"k": 1, "asked": 2}, {"k": 2, "asked": 1}])
        assert run.advance("60 s") == 0
