"""Sessions against the oracle: rows that bridge sessions, late ones, sessions that stay where others go."""

from __future__ import annotations

from typing import Any

import pytest
from aggregate_model import Model, crc, normal, one_hash
from hypothesis import given
from hypothesis import strategies as st
from test_window_oracle import SMALL, epochs_of, functions
from window_model import TYPES, Epoch, Event, Put, Result, aggregates, at, check, columns, late_row

from holdfast.operators.session import SessionOperator, SessionSpec
from holdfast.state.slice import NEVER
from holdfast.state.warm import warm


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


class SessionModel:
    """Open sessions of each key as lists of rows with their times."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec
        self.sessions: dict[Any, list[list[tuple[int, Event]]]] = {}

    def result(self, rows: list[tuple[int, Event]]) -> Result:
        times = [time for time, _ in rows]
        key = tuple(map(normal, rows[0][1].key))
        triples = [(1, row.key, row.values) for _, row in rows]
        found = [Model.result(one, triples) for one in self.spec.aggregates]
        return (*key, at(min(times)), at(max(times) + self.spec.gap), *found)

    def touches(self, one: list[tuple[int, Event]], other: list[tuple[int, Event]]) -> bool:
        a, b = [time for time, _ in one], [time for time, _ in other]
        return min(b) - max(a) <= self.spec.gap and min(a) - max(b) <= self.spec.gap

    def apply(self, epoch: Epoch) -> Put:
        put, gap = Put(), self.spec.gap
        late = NEVER if self.spec.unit == "clock" else epoch.time.late
        upto = epoch.time.clock if self.spec.unit == "clock" else epoch.time.watermark
        fresh: dict[Any, list[tuple[int, int, Event]]] = {}
        gone: list[tuple[int, Event]] = []
        for position, row in enumerate(epoch.rows):
            time = epoch.time.clock if self.spec.unit == "clock" else row.time
            key = tuple(map(normal, row.key))
            if time is None:
                put.counts["null time"] = put.counts.get("null time", 0) + 1
            elif time + gap < late and not any(self.began(one) <= time for one in self.sessions.get(key, [])):
                gone.append((position, row))
            else:
                fresh.setdefault(tuple(map(normal, row.key)), []).append((position, time, row))
        for key, rows in fresh.items():
            # Grow clusters of (old sessions, new rows) until no two touch.
            clusters: list[tuple[list[Any], list[Any]]] = [([old], []) for old in self.sessions.get(key, [])]
            clusters += [([], [row]) for row in rows]
            merged = True
            while merged:
                merged = False
                for a in range(len(clusters)):
                    for b in range(a + 1, len(clusters)):
                        if not merged and self.touches(self.flat(clusters[a]), self.flat(clusters[b])):
                            both = clusters.pop(b), clusters.pop(a)
                            clusters.append((both[1][0] + both[0][0], both[1][1] + both[0][1]))
                            merged = True
            kept = []
            for olds, news in clusters:
                assert max(time for time, _ in self.flat((olds, news))) + gap >= late
                olds = sorted(olds, key=lambda old: min(time for time, _ in old))
                session = [one for old in olds for one in old] + [(time, row) for _, time, row in sorted(news)[:]]
                if news and self.spec.mode == "update":
                    put.old += [self.result(old) for old in olds]
                    put.new.append(self.result(session))
                kept.append(session)
            self.sessions[key] = kept
        for _, row in sorted(gone, key=lambda one: one[0]):
            put.counts["late"] = put.counts.get("late", 0) + 1
            put.late.append(late_row(self.spec, row))
        for key, sessions in self.sessions.items():
            over = [one for one in sessions if max(time for time, _ in one) + gap < upto]
            if self.spec.mode == "append":
                put.new += map(self.result, over)
            self.sessions[key] = [one for one in sessions if one not in over]
        return put

    @staticmethod
    def began(session: list[tuple[int, Event]]) -> int:
        return min(time for time, _ in session)

    @staticmethod
    def flat(cluster: tuple[list[Any], list[Any]]) -> list[tuple[int, Event]]:
        return [one for old in cluster[0] for one in old] + [(time, row) for _, time, row in cluster[1]]


@st.composite
def specs(draw: st.DrawFn) -> SessionSpec:
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=2))
    unit = draw(st.sampled_from(["event", "event", "clock"]))
    return SessionSpec(
        columns(draw(st.lists(st.sampled_from(["int", "string"]), min_size=1, max_size=2)), "key"),
        aggregates(draw(st.lists(st.sampled_from(functions(kinds)), min_size=1, max_size=4))),
        columns([*kinds, "timestamp"], "value"),
        draw(st.integers(1, 12)),
        unit,
        f"v{len(kinds)}" if unit == "event" else None,
        draw(st.sampled_from(["append", "update"])),
        tuple(draw(st.lists(st.integers(0, len(kinds)), unique=True, max_size=2))),
    )


@SMALL
@given(data=st.data())
def test_sessions_equal_the_oracle(data: st.DataObject) -> None:
    spec = data.draw(specs())
    epochs = epochs_of(data.draw, spec)
    check(SessionOperator(spec), SessionModel(spec), epochs, data.draw, data.draw(st.sampled_from([crc, one_hash])))
