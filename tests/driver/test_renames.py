"""A store that calls its stages by their order, opened by a job that calls them by name: once, whatever dies meanwhile.

No Spark: the log is written by hand, as in ``test_upgrade``; ``tests/end_to_end/test_older_stores.py`` has real ones.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from test_upgrade import HIGH, KEYS, KILLED, SECOND, SLICES, TOTAL, VALUES, N, Shop, fresh_rows, stage, torn_shop

from holdfast.driver import upgrade as upgrading
from holdfast.errors import StoreError
from holdfast.log.records import FEED, Commit, Fence, JobFile, Range
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.spec import AggregateSpec
from holdfast.operators.stage import StagePlan, TimePlan
from holdfast.operators.window import WindowSpec
from holdfast.plan.compile import Notes
from holdfast.plan.fingerprint import Fingerprint
from holdfast.spark.stream import JobPlan


def graph(counts: str, windows: str, *aggregates: AggregateSpec) -> list[StagePlan]:
    spec = WindowSpec(KEYS, (N, TOTAL), VALUES, 4 * SECOND, 4 * SECOND, "event", "v2")
    return [
        stage(counts, StageSpec(KEYS, aggregates or (N, TOTAL))),
        replace(stage(windows, spec), time=TimePlan((f"{windows}/0/rows",))),
    ]


BEFORE, NOW = graph("stage1", "stage2"), graph("rows_by_k_agg", "windows")


@dataclass
class Drawn:
    """Of a job's plan what its start asks for."""

    stages: Sequence[StagePlan]
    made_names: list[str] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)

    def fingerprint(self) -> Fingerprint:
        return Fingerprint(("rows",))


class Old(Shop):
    timed = ("stage2",)

    def open(
        self,
        asked: Sequence[StagePlan],
        *,
        stored: Sequence[StagePlan] = BEFORE,
        made: Sequence[str] = (),
        drop: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """What a start does with the store, up to the first container; what it tells."""
        file = JobFile("j", "job", {"sources": ["rows"]}, SLICES, 0, stages=[one.to_dict() for one in stored])
        upgrade = upgrading.look(self.ledger, file, cast(JobPlan, Drawn(asked, list(made))), drop)
        if upgrade is None:
            return ()
        upgrade.perform(self.ledger.take_ownership("h", 1, "").incarnation)
        return upgrade.changes

    def reopened(self) -> Old:
        shop = Old(self.path)
        shop.rows = self.rows
        shop.timed = ("stage2",) if shop.ledger.graph() is None else ("windows",)
        return shop

    def finish(self, plans: Sequence[StagePlan]) -> list[dict[str, Any]]:
        """Apply and commit the epoch that is prepared; the windows that it closes."""
        epoch = self.committed + 1
        prepare = self.ledger.get_prepare(epoch, 1)
        assert prepare is not None
        self.ledger.refuse_former_graph(prepare)
        closed = []
        with self.hosted(plans) as job:
            job.apply(prepare, range(SLICES))
            for _, batch in job.reading.outputs(plans[1].name, range(SLICES), epoch, "changed"):
                closed += batch.to_pylist()
        self.ledger.put_commit(Commit(Fence(2, epoch, 1), {FEED: Range(epoch, epoch)}))
        rows = [
            {"k": row["k"], "end": int(row["window_end"].timestamp()), "n": row["n"], "total": row["total"]}
            for row in closed
        ]
        return sorted(rows, key=lambda row: (row["k"], row["end"]))


def counted(shop: Shop) -> list[dict[str, Any]]:
    keys = {row[0] for of in shop.rows.values() for row in of}
    mine = {key: [row[1] for of in shop.rows.values() for row in of if row[0] == key] for key in keys}
    return sorted(({"k": key, "n": len(of), "total": sum(of)} for key, of in mine.items()), key=repr)


def closed_by(shop: Shop, epoch: int) -> list[dict[str, Any]]:
    """The windows that the watermark passes in an epoch: it is at the epoch's own second then."""
    found: dict[tuple[int, int], list[int]] = {}
    for of in shop.rows.values():
        for key, number, _, time in of:
            end = time // (4 * SECOND) * 4 + 4
            if epoch - 1 < end <= epoch:
                found.setdefault((key, end), []).append(number)
    return [{"k": key, "end": end, "n": len(of), "total": sum(of)} for (key, end), of in sorted(found.items())]


def in_flight(path: Path, checkpoint: str = "behind") -> Old:
    """Seven epochs, and an eighth that is prepared: the watermark passes the second window in it."""
    shop = Old(path)
    shop.epochs(5)
    if checkpoint == "behind":
        shop.checkpoint(BEFORE)
    shop.epochs(2)
    if checkpoint == "right there":
        shop.checkpoint(BEFORE)
    shop.prepare(8, fresh_rows(8))
    return shop


@pytest.mark.parametrize("checkpoint", ["none", "behind", "right there"])
def test_an_epoch_of_before_is_finished_under_the_new_names(tmp_path: Path, checkpoint: str) -> None:
    shop = in_flight(tmp_path / "store", checkpoint)
    told = shop.open(NOW, made=["rows_by_k_agg"])
    assert told == (
        "stage 'stage1' is called 'rows_by_k_agg' from now on",
        "stage 'stage2' is called 'windows' from now on",
    )
    shop = shop.reopened()
    written = shop.ledger.graph()
    assert written is not None
    assert [one["name"] for one in written.stages] == ["rows_by_k_agg", "windows"]
    assert (written.made_names, written.mends, written.epoch) == (["rows_by_k_agg"], 1, 7)
    assert shop.reopened().open(NOW) == ()  # once
    found = shop.finish(NOW)
    assert found == closed_by(shop, 8)
    assert found
    assert shop.read(NOW, "rows_by_k_agg") == counted(shop)

    # And on: epochs, a checkpoint and what is restored from it, in terms of the new names alone.
    shop.epochs(2)
    shop.checkpoint(NOW)
    for epoch in (11, 12):
        shop.prepare(epoch, fresh_rows(epoch))
        assert shop.finish(NOW) == closed_by(shop, epoch)
    assert shop.read(NOW, "rows_by_k_agg") == counted(shop)
    shop.tidy()
    assert shop.reopened().read(NOW, "rows_by_k_agg") == counted(shop)


@pytest.mark.parametrize("place", KILLED)
def test_killed_on_the_way_to_the_new_names(tmp_path: Path, place: str) -> None:
    shop = in_flight(tmp_path / "store")
    faults = tmp_path / "faults"
    faults.mkdir()
    (faults / f"driver@{place}@7").touch()
    died = subprocess.run(
        [sys.executable, __file__, str(shop.path)],
        env={**os.environ, "HOLDFAST_FAULTS": str(faults)},
        capture_output=True,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    shop = shop.reopened()
    assert (shop.ledger.graph() is None) == (place != "after-graph")
    shop.open(NOW)
    shop = shop.reopened()
    assert shop.finish(NOW) == closed_by(shop, 8)
    assert shop.read(NOW, "rows_by_k_agg") == counted(shop)


def test_the_numbers_may_be_given_as_names(tmp_path: Path) -> None:
    shop = in_flight(tmp_path / "store")
    assert shop.open(BEFORE) == ()
    assert shop.finish(BEFORE) == closed_by(shop, 8)
    shop.open(NOW)
    assert shop.reopened().read(NOW, "rows_by_k_agg") == counted(shop)


def test_what_was_said_of_time_still_counts_after_another_change(tmp_path: Path) -> None:
    """The last prepare of before the names is read with them, also by a graph after the one that brought them."""
    shop = in_flight(tmp_path / "store")
    shop.open(NOW)
    shop.finish(NOW)
    shop = shop.reopened()
    shop.open(graph("rows_by_k_agg", "windows", N, TOTAL, HIGH))
    prepare = shop.reopened().ledger.get_prepare(8, 1)
    assert prepare is not None
    marks = prepare.watermark_before, prepare.watermark_after
    assert (prepare.graph, *marks) == (0, {"windows": 7 * SECOND}, {"windows": 8 * SECOND})


def test_it_must_be_the_job_that_it_was(tmp_path: Path) -> None:
    """A stage that was put in before the others would have each of them take the state of its neighbour."""
    shop = Old(tmp_path / "store")
    shop.epochs(2)
    for asked in (
        [stage("young", StageSpec(KEYS, (N, TOTAL))), *NOW],
        NOW[:1],
        NOW[::-1],
        graph("rows_by_k_agg", "windows", N, HIGH),
    ):
        with pytest.raises(StoreError, match="calls stages by their order") as caught:
            shop.open(asked)
        assert "once as it was" in caught.value.todo
    assert shop.reopened().ledger.graph() is None


def test_a_made_name_that_is_gone_is_asked_about(tmp_path: Path) -> None:
    shop = Old(tmp_path / "store")
    shop.epochs(2)
    shop.open(NOW, made=["rows_by_k_agg"])
    shop = shop.reopened()
    other, made = graph("rows_agg", "windows"), ["rows_agg"]
    with pytest.raises(StoreError, match=r"'rows_by_k_agg', which nobody has named.*'rows_agg' is new") as caught:
        shop.open(other, made=made)
    assert "name='rows_by_k_agg'" in caught.value.todo
    assert "start(drop=['rows_by_k_agg'])" in caught.value.todo
    told = shop.open(other, made=made, drop=["rows_by_k_agg"])
    assert "stage 'rows_by_k_agg' is gone: its state is dropped" in told
    assert shop.reopened().read(other, "rows_agg") == []


def test_sinks_that_have_begun_under_the_old_names_are_remembered(tmp_path: Path) -> None:
    """An epoch that was applied before the names came, and raises after that, is not mended: sinks may have it."""
    _, old, new = torn_shop(tmp_path / "store")
    shop = Old(tmp_path / "store")
    shop.ledger.mark_applied(Fence(1, 3, 0))
    stored = [replace(old, name="stage1")]
    assert shop.open([replace(old, name="own")], stored=stored)
    shop.ledger.mark_failed(Fence(2, 3, 0), "a torn row")
    assert shop.ledger.failed(3) is None
    with pytest.raises(StoreError, match="epoch 3 was begun before"):
        shop.open([replace(new, name="own")], stored=stored)


if __name__ == "__main__":
    Old(Path(sys.argv[1])).open(NOW)
