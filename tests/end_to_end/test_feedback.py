"""What an epoch feeds back, seen by the functions of the next: against plain Python over the files of each epoch, with
nobody dying and with whoever can."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from driver import source
from kit import Drill, EpochsGoOn, committed_files, write_files
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store
from holdfast.state.feedback import unpacked

pytestmark = pytest.mark.spark
register_pickle_by_value(sys.modules[__name__])


class Truth:
    """What every function must have seen and made of it, epoch by epoch."""

    def __init__(self, epochs: list[list[str]]) -> None:
        self.favoured: Counter[int] = Counter()
        self.news: Counter[int] = Counter()
        self.said: dict[int, str] = {}
        self.written: list[tuple[int, int, int, int]] = []
        self.fed: list[tuple[list[str], int]] = []
        """What each epoch feeds back: the best groups, and the news in all."""
        totals: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        best: list[str] = []
        told = 0
        for epoch, paths in enumerate(epochs, 1):
            rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
            keys = sorted({row["k"] for row in rows})
            for row in rows:
                self.favoured[row["k"]] += (row["v"] or 0) if row["g"] in best else 0
            for key in keys:
                self.news[key] += told
                self.written.append((key, self.favoured[key], self.news[key], epoch))
            for rest in {key % 5 for key in keys}:
                self.said[rest] = self.said.get(rest, "") + " ".join(best) + ";"
            for row in rows:
                totals[row["g"]] += row["v"] or 0
                counts[row["g"]] += 1
            best = sorted(totals, key=lambda group: (-totals[group], group))[:4]
            told = sum(counts[group] for group in {row["g"] for row in rows} if counts[group] % 3 == 0)
            self.fed.append((best, told))


def check(drill: Drill) -> Truth:
    """States, the sink, and what commits and prepares hold."""
    truth = Truth(drill.epochs())
    result = drill.base / "result"
    favours = pq.read_table(result / "favours.parquet").to_pylist()
    assert {row["k"]: (row["favoured"], row["news"]) for row in favours} == {
        key: (truth.favoured[key], truth.news[key]) for key in truth.news
    }
    assert any(truth.favoured.values())
    assert {row["rest"]: row["said"] for row in pq.read_table(result / "above.parquet").to_pylist()} == truth.said
    written = [
        row for file in committed_files(drill.base / "out" / "favoured") for row in pq.read_table(file).to_pylist()
    ]
    found = sorted((row["k"], row["favoured"], row["news"], row["_epoch"]) for row in written)
    assert found == sorted(truth.written)
    ledger = Ledger(Store(str(drill.base / "store")), "main")
    for epoch, (best, news) in enumerate(truth.fed, 1):
        commit, after = ledger.get_commit(epoch), ledger.get_prepare(epoch + 1, 1)
        assert commit is not None
        assert [row["g"] for row in unpacked(commit.feedback["best"])] == best
        assert sum(row["n"] for row in unpacked(commit.feedback.get("news", b""))) == news
        if after is not None:
            assert {name: rows for name, rows in after.feedback.items() if rows} == {
                name: rows for name, rows in commit.feedback.items() if rows
            }
    return truth


def test_functions_see_what_the_epoch_before_fed_back_also_where_the_log_is_replayed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = Drill(tmp_path, files=3, rows=200, keys=40, config={"shape": "feedback", "slices": 4, "safety": "none"})
    drill.plant("container@mid-apply@3")
    drill.run_here(spark, monkeypatch)
    assert not drill.planted
    check(drill)
    # Started again, it goes on where it was: with what the last commit has.
    drill.add_file()
    drill.run_here(spark, monkeypatch)
    check(drill)


@pytest.mark.heavy
def test_functions_see_what_the_epoch_before_fed_back_while_containers_die_and_slices_move(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = Drill(tmp_path, files=2, rows=300, keys=60, config={"flows": True, "shape": "feedback", "slices": 8})
    drill.plant("container@mid-apply@3")

    def act(run: hf.Run) -> None:
        with drill.flowing(lambda: run._shell.machine.committed):
            going = EpochsGoOn(drill, run)
            going.epochs(3)
            going.settle()  # the one that died has a successor
            run.move(range(4), to=going.alive[-1].name)
            run.move(range(4, 8), to=going.alive[0].name)
            going.settle()
            going.kill(1)
            going.epochs(1)

    drill.run_here(spark, monkeypatch, act)
    assert not drill.planted
    check(drill)


@pytest.mark.drivers
def test_a_driver_dies_and_functions_see_the_same(tmp_path: Path) -> None:
    places = ("after-prepare", "mid-sink", "after-sinks", "after-commit")
    drill = Drill(tmp_path, files=7, rows=200, keys=40, config={"shape": "feedback", "slices": 4})
    for epoch, place in enumerate(places, 2):
        drill.plant(f"driver@{place}@{epoch}")
    for _ in places:
        assert drill.run().killed
    ended = drill.run()
    assert ended.code == 0, ended.error
    check(drill)


def test_too_much_ends_the_run_before_any_sink_has_it_and_less_of_it_goes_on(
    tmp_path: Path, spark: SparkSession
) -> None:
    """As the error says: another filter in front, and the epoch that failed is finished."""
    write_files(tmp_path / "all", 2, 100, keys=40, seed=3)
    write_files(tmp_path / "large", 2, 6000, keys=6000, seed=4)
    (tmp_path / "input").mkdir()

    def take(*files: str) -> None:
        for file in files:
            (tmp_path / file).rename(tmp_path / "input" / f"{len(list((tmp_path / 'input').iterdir()))}.parquet")

    def start(where: str, **options: Any) -> hf.Run:
        job = hf.Job("large", spark, store=tmp_path / "store")
        rows = job.read(source(spark, str(tmp_path / "input")))
        counts = rows.key_by("k", "g", name="counts").agg(n=hf.count(), total=hf.sum("v"))
        counts.write("parquet", str(tmp_path / "counts"))
        if where:
            counts.where(where).feedback("counts")
        rows.select("k").key_by("k", name="seen").process(Seen, "k bigint, n bigint").write(
            "parquet", str(tmp_path / "seen")
        )
        return job.start(containers=1, slices=4, trigger="availableNow", **options)

    def epochs(folder: str) -> set[int]:
        return set(pq.read_table(tmp_path / folder)["_epoch"].to_pylist())

    take("all/0000.parquet")
    with start("true") as run:
        run.await_termination()
    take("large/0000.parquet")
    for _ in range(2):  # it is what it is
        with pytest.raises(hf.SinkError, match="Feedback 'counts' of epoch 2 is") as caught, start("true") as run:
            run.await_termination()
        assert ".where(…) or .select(…) before .feedback('counts')" in caught.value.todo
        assert epochs("counts") == epochs("seen") == {1}, "no sink has had anything of it"
    take("all/0001.parquet")
    with start("k < 100") as run:
        run.await_termination()
        assert run.status().epoch == 3
    rows = pq.read_table(sorted((tmp_path / "input").iterdir())[0]).to_pylist()
    first = {(row["k"], row["g"]) for row in rows}
    rows += (second := pq.read_table(sorted((tmp_path / "input").iterdir())[1]).to_pylist())
    fed = {1: 0, 2: len(first), 3: len({(row["k"], row["g"]) for row in second if row["k"] < 100})}
    found = {(row["_epoch"], row["n"]) for row in pq.read_table(tmp_path / "seen").to_pylist()}
    assert found == set(fed.items())
    # Or without it.
    take("large/0001.parquet")
    with pytest.raises(hf.SinkError, match="Feedback 'counts' of epoch 4 is"), start("true") as run:
        run.await_termination()
    with start("", drop_sinks=["feedback:counts"]) as run:
        run.await_termination()
    assert epochs("counts") == epochs("seen") == {1, 2, 3, 4}


class Seen:
    """How many rows were fed back, under whatever name its parameters say."""

    def rows(self, key: int, rows: Any, context: Any) -> Any:
        yield {"k": key, "n": len(context.feedback.get(context.parameters.get("name", "counts"), ()))}


def test_jobs_of_a_hub_feed_back_to_each_other(tmp_path: Path, spark: SparkSession) -> None:
    write_files(tmp_path / "all", 8, 200, keys=30, seed=5)
    (tmp_path / "input").mkdir()

    def give() -> int:
        """The groups of one more file, which is an epoch of its own."""
        file = min((tmp_path / "all").iterdir())
        file.rename(tmp_path / "input" / file.name)
        run.process_all_available()
        return len(set(pq.read_table(tmp_path / "input" / file.name)["g"].to_pylist()))

    def seen() -> dict[int, int]:
        """What the reader's function saw in each epoch."""
        rows = pq.read_table(tmp_path / "seen").to_pylist()
        found = {row["_epoch"]: row["n"] for row in rows}
        assert len(found) == len({(row["_epoch"], row["n"]) for row in rows}), "unlike in one epoch"
        return found

    hub = hf.Hub("shop", spark, store=tmp_path / "store")
    hub.read(source(spark, str(tmp_path / "input")), name="rows")
    reader = hub.job("reader").stream("rows").select("k").key_by("k", name="seen")
    reader.process(Seen, "k bigint, n bigint", parameters={"name": "late/groups"}).write(
        "parquet", str(tmp_path / "seen")
    )
    expected = {}
    with hub.start(containers=2, slices=4) as run:
        give()
        expected[run.status().epoch] = 0
        late = hub.job("late")
        late.stream("rows").key_by("g", name="groups").agg(n=hf.count()).feedback("groups")
        run.add(late)
        fed = give()
        expected[run.status().epoch] = 0
        run.kill(run.status().containers[0].name)
        for _ in range(2):
            before, fed = fed, give()
            expected[run.status().epoch] = before
        assert seen() == expected
        # What is removed is seen once more, by the first epoch without it: its commit has it.
        removed = run.remove("late").epoch
        give()
        now = run.status().epoch
        expected[now] = fed if removed == now else 0
        give()
        expected[run.status().epoch] = 0
        assert seen() == expected
