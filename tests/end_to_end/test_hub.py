"""Many jobs on one read: each job's rows and state against a batch query of its own, whoever dies."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driver import source
from kit import equal, write_files
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf
from holdfast.cli import main

pytestmark = pytest.mark.spark

FILES, ROWS = 5, 1500
TRUTH = {
    "totals/by_key": "SELECT k, count(*) AS n, sum(v)::BIGINT AS total FROM rows GROUP BY k",
    "groups/by_group": "SELECT g, count(*) AS n FROM rows WHERE v > 0 AND g <> 'g3' GROUP BY g",
    "twin/positive": "SELECT g, count(*) AS n FROM rows WHERE v > 0 AND g <> 'g3' GROUP BY g",
    "rooms/rooms": "SELECT n % 3 AS room, count(*) AS keys "
    "FROM (SELECT k, count(*) AS n FROM rows GROUP BY k) GROUP BY room",
    "sql/spread": "SELECT g, min(x) AS least, max(x) AS most FROM rows WHERE k % 2 = 0 GROUP BY g",
    "parts/parts": "SELECT part, count(*) AS n FROM (SELECT unnest([k % 5, k % 7]) AS part FROM rows) GROUP BY part",
}


def draw(base: Path, spark: SparkSession) -> hf.Hub:
    hub = hf.Hub("shop", spark, store=base / "store")
    hub.read(source(spark, str(base / "input")), name="rows", time="t", lateness="1 day")
    totals = hub.job("totals", creator="ann")
    by_key = totals.stream("rows").key_by("k", name="by_key").agg(n=hf.count(), total=hf.sum("v"))
    by_key.write("parquet", str(base / "totals"))
    groups = hub.job("groups").stream("rows").where("v > 0").where("g <> 'g3'")
    groups.key_by("g", name="by_group").agg(n=hf.count()).write("noop")
    # The same, said otherwise, by somebody who does not know of it.
    twin = hub.job("twin", creator="bob").stream("rows").select("g", "v").filter("v > 0").filter("g <> 'g3'")
    twin.key_by("g", name="positive").agg(n=hf.count()).write("parquet", str(base / "twin"))
    rooms = hub.job("rooms").stream("totals/by_key").with_column("room", "n % 3")
    rooms.key_by("room", name="rooms").agg(keys=hf.count()).write("noop")
    hub.job("sql").sql("SELECT g, min(x) AS least, max(x) AS most FROM rows WHERE k % 2 = 0 GROUP BY g", name="spread")
    parts = hub.job("parts").stream("rows")
    exploded = parts.transform(lambda df: df.selectExpr("explode(array(k % 5, k % 7)) AS part"))
    exploded.key_by("part", name="parts").agg(n=hf.count())
    hub.job("plain").stream("rows").where("v > 900").select("k", "v").write("parquet", str(base / "plain"))
    return hub


def read_rows(base: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted((base / "input").glob("*.parquet"))])


def check(run: hf.Run, base: Path) -> None:
    rows = read_rows(base)
    for name, truth in TRUTH.items():
        held = run.state(name).to_arrow()
        columns = [column for column in held.column_names if not column.startswith("_")]
        equal(f"SELECT {', '.join(columns)} FROM held", truth, held=held, rows=rows)
    plain = pq.read_table(base / "plain", columns=["k", "v"])
    equal("SELECT k, v FROM plain", "SELECT k, v FROM rows WHERE v > 900", plain=plain, rows=rows)
    for folder, stage, key in (("totals", "totals/by_key", "k"), ("twin", "twin/positive", "g")):
        written = pq.read_table(base / folder)
        newest = f"row_number() OVER (PARTITION BY {key} ORDER BY _epoch DESC) = 1"
        equal(f"SELECT * EXCLUDE (_epoch) FROM written QUALIFY {newest}", TRUTH[stage], written=written, rows=rows)


def test_jobs_of_a_hub_share_one_read_and_one_run(tmp_path: Path, spark: SparkSession) -> None:
    write_files(tmp_path / "input", FILES, ROWS, keys=40, seed=5)
    hub = draw(tmp_path, spark)
    names = [stage.name for stage in hub.plan().stages]
    assert names == ["totals/by_key", "groups/by_group", "rooms/rooms", "sql/spread", "parts/parts"], "twins are one"
    with hub.start(containers=2, slices=4, trigger="availableNow") as run:
        run.kill(run.status().containers[0].name)
        run.await_termination()
        check(run, tmp_path)
        assert run.status().sources["rows"].rows == ROWS
        asked = run.sql("SELECT sum(t.n) AS a, sum(g.n) AS b FROM `totals/by_key` t JOIN `twin/positive` g ON true")
        assert asked.to_pylist()[0]["a"] == FILES * ROWS * 29
    write_files(tmp_path / "more", 1, ROWS, keys=40, seed=6)
    (tmp_path / "more" / "0000.parquet").rename(tmp_path / "input" / "9000.parquet")
    with draw(tmp_path, spark).start(containers=2, trigger="availableNow") as run:
        run.await_termination()
        assert sum(one.slices for one in run.status().containers if one.alive) == 4, "what the store has"
        check(run, tmp_path)


def test_one_job_is_asked_by_its_name(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path / "input", 2, 500, keys=20, seed=7)
    hub = draw(tmp_path, spark)
    with hub.start(containers=2, slices=4) as run:
        run.process_all_available()
        rows = read_rows(tmp_path)
        for job, stage in (name.split("/") for name in TRUTH):  # a twin by its own name, too
            for called in (stage, f"`{job}/{stage}`"):
                found = run.ask(job, f"SELECT * FROM {called}")
                assert found.epoch == run.status().epoch
                equal("SELECT * FROM held", TRUTH[f"{job}/{stage}"], held=found.to_arrow(), rows=rows)
        one = run.ask("totals", "SELECT n FROM by_key WHERE k = 3").to_pylist()
        assert one == run.sql("SELECT n FROM `totals/by_key` WHERE k = 3").to_pylist()
        assert "one key, at its owner" in str(run.ask("totals", "EXPLAIN SELECT n FROM by_key WHERE k = 3").to_pylist())
        both = "SELECT count(*) AS n FROM by_key a JOIN by_key b ON a.k = b.k + 1"
        assert run.ask(hub._jobs["totals"], both).to_pylist() == [{"n": 19}]
        for job, text, what, todo in [
            ("total", "SELECT 1", "Hub 'shop' runs no job 'total'", "Its jobs are: totals, groups, twin, rooms"),
            (
                "totals",
                "SELECT * FROM by_group",
                "no stage 'by_group' in job 'totals'",
                "'totals' are: by_key. run.sql",
            ),
            (
                "totals",
                "SELECT * FROM `groups/by_group`",
                "no stage 'groups/by_group' in job 'totals'",
                "run.sql reads",
            ),
            ("plain", "SELECT * FROM rows", "no stage 'rows' in job 'plain'", "The stages of job 'plain' are: none."),
            ("totals", "DROP TABLE by_key", "run.ask answers one query", "SELECT … FROM a stage"),
        ]:
            with pytest.raises(hf.PlanError) as caught:
                run.ask(job, text)
            assert what in caught.value.what
            assert todo in caught.value.todo
        drawn = hub.job("later")
        drawn.stream("rows").key_by("g", name="groups").agg(n=hf.max("v"))
        with pytest.raises(hf.PlanError, match="runs no job 'later'") as caught:
            run.ask(drawn, "SELECT * FROM groups")
        assert "run.add(later)" in caught.value.todo
        # And from a shell.
        command = ["sql", "--store", str(tmp_path / "store"), "--job"]
        for job, code, said in (("totals", 0, "20 rows"), ("rooms", 1, "no stage 'by_key' in job 'rooms'")):
            monkeypatch.setattr("sys.stdin", io.StringIO("SELECT k, n FROM by_key"))
            assert main([*command, job]) == code
            assert said in "".join(capsys.readouterr())


def test_several_sources_are_one_pass_and_jobs_read_any_of_them(tmp_path: Path, spark: SparkSession) -> None:
    for folder, seed in (("left", 1), ("right", 2)):
        write_files(tmp_path / folder, 3, 700, keys=25, seed=seed)
    hub = hf.Hub("both", spark, store=tmp_path / "store")
    for folder in ("left", "right"):
        hub.read(source(spark, str(tmp_path / folder)), name=folder)
    one, other, both = (hub.job(name) for name in ("one", "other", "both"))
    one.stream("left").where("v > 0").key_by("k", name="sums").agg(total=hf.sum("v"))
    other.stream("right").key_by("g", name="counts").agg(n=hf.count())
    left, right = (both.stream(name).where("k < 10").select("k", "x") for name in ("left", "right"))
    left.union(right).key_by("k", name="most").agg(x=hf.max("x"))
    # What another job holds, looked up and read as a stream.
    reader = hub.job("reader")
    sums = reader.stream("one/sums")
    assert isinstance(sums, hf.StageStream)
    reader.stream("right").select("k", "v").key_by("k", name="with_sums").lookup(sums).write(
        "parquet", f"{tmp_path}/out"
    )
    reader.stream("other/counts").key_by(F.length("g").alias("size"), name="by_size").agg(groups=hf.count())
    hub.explain()
    with hub.start(containers=2, slices=4, trigger="availableNow") as run:
        run.kill(run.status().containers[1].name)
        run.await_termination()
        tables = {
            name: pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / name).glob("*.parquet"))])
            for name in ("left", "right")
        }
        for name, truth in {
            "one/sums": "SELECT k, sum(v)::BIGINT AS total FROM l WHERE v > 0 GROUP BY k",
            "other/counts": "SELECT g, count(*) AS n FROM r GROUP BY g",
            "both/most": "SELECT k, max(x) AS x FROM (FROM l UNION ALL FROM r) WHERE k < 10 GROUP BY k",
            "reader/by_size": "SELECT length(g)::INT AS size, count(DISTINCT g) AS groups FROM r GROUP BY size",
        }.items():
            equal("SELECT * FROM held", truth, held=run.state(name).to_arrow(), l=tables["left"], r=tables["right"])
        assert {one.name: one.rows for one in run.status().sources} == {"left": 700, "right": 700}
    looked = pq.read_table(tmp_path / "out", columns=["k", "v"])
    equal("SELECT k, v FROM looked", "SELECT k, v FROM r", looked=looked, r=tables["right"])


def test_what_a_hub_refuses(tmp_path: Path, spark: SparkSession) -> None:
    write_files(tmp_path / "input", 1, 50, keys=5, seed=1)
    hub = hf.Hub("shop", spark, store=tmp_path / "store")
    with pytest.raises(hf.PlanError, match="A source of a hub needs a name"):
        hub.read(source(spark, str(tmp_path / "input")))
    hub.read(source(spark, str(tmp_path / "input")), name="rows")
    with pytest.raises(hf.PlanError, match="No job of hub 'shop' keeps state"):
        hub.start()
    with pytest.raises(hf.PlanError, match="A hub draws nothing itself"):
        hub.sql("SELECT 1")
    with pytest.raises(hf.PlanError, match="'a/b' cannot be a job's name"):
        hub.job("a/b")
    job = hub.job("one")
    with pytest.raises(hf.PlanError, match="Hub 'shop' has a job 'one' already"):
        hub.job("one")
    with pytest.raises(hf.PlanError, match=r"There is no stream 'nothing'.*\n.*\n.*Its sources are: rows"):
        job.stream("nothing")
    with pytest.raises(hf.PlanError, match="`colour` cannot be resolved"):
        job.stream("rows").key_by("colour").agg(n=hf.count())
    counts = job.stream("rows").key_by("k", name="counts").agg(n=hf.count())
    hub.job("twin").stream("rows").key_by("k", name="twin").agg(n=hf.count())
    hub.job("reader").stream("one/counts").where("n > 1").write("noop")
    hub.job("sums").stream("rows").key_by("k", name="own").agg(total=hf.sum("v"))
    hub.job("above").stream("sums/own").key_by("total", name="above").agg(n=hf.count())
    seen: list[str] = []
    with hub.start(containers=1, slices=2) as run:
        run.process_all_available()
        for wrong, said in (
            (lambda: run.update("one/nothing", where="k > 1"), "There is no stage 'one/nothing'"),
            (lambda: run.update("sums/own"), "one thing of a stage at a time"),
            (lambda: run.update("sums/own", where="colour > 1"), "colour"),
            (lambda: run.update("sums/own", where=F.col("k") > 1), "SQL text"),
            (lambda: run.update("sums/own", parameters={"a": 1}), "it has no function, and no parameters"),
            (lambda: run.update("above/above", where="k > 1"), "reads rows that can be taken back"),
            (lambda: run.update(counts, where="k > 1"), "is one with another job's, and job 'reader' reads it as"),
            (lambda: run.remove("nobody"), "has no job 'nobody'"),
            (lambda: run.remove(None), "has no job 'None'"),  # type: ignore[arg-type]
            (lambda: run.add("late"), "run.add takes a job"),  # type: ignore[arg-type]
            (lambda: run.remove("sums"), "Job 'above' reads 'sums/own' of job 'sums'"),
            (lambda: run.resume("sums"), "is not left out"),
            (lambda: run.add(hub._jobs["one"]), "that was drawn since hub 'shop' runs"),
            (lambda: hub.read(source(spark, str(tmp_path / "input")), name="more"), "Hub 'shop' runs"),
        ):
            with pytest.raises(hf.PlanError, match=said) as caught:
                wrong()
            seen.append(caught.value.what)
        late = hub.job("late")
        late.stream("sums/own").key_by("total", name="late").agg(keys=hf.sum("k"))
        with pytest.raises(hf.PlanError, match="told to take back rows that it never got"):
            run.add(late)
        # What was refused has changed nothing: twins may part by the removal of one, and the other keeps the state.
        run.remove("reader")
        # What is drawn on a stage that goes, or changes, before it is added, must be drawn again.
        early = hub.job("early")
        early.stream("rows").key_by("k", name="sums").agg(total=hf.sum("v"))
        run.remove("above")
        run.update("sums/own", where="v > 0")
        with pytest.raises(hf.PlanError, match="removed or changed meanwhile"):
            run.add(early)
        run.remove("one")
        assert run.state("twin/twin").to_arrow().num_rows == 5
        assert [job.name for job in run.jobs] == ["twin", "sums"]
    assert len(seen) == 14
