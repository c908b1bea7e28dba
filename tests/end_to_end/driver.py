"""A driver that can be killed: runs one job over Parquet files, then writes its state for the oracle.

Started as a process of its own by ``kit.Drill``, so that what dies is a real driver with its JVM and its containers.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType

import holdfast as hf

sys.path.append(str(Path(__file__).parents[2] / "examples"))
QUICK_JAVA = os.environ.get("SPARK_SUBMIT_OPTS", "")
"""What drivers have, for executors: they live as shortly (``tests/jvm.py``)."""
SCHEMA = "k bigint, g string, v bigint, x double, t timestamp"


def session(config: dict[str, Any]) -> SparkSession:
    builder = (
        SparkSession.builder.master(config["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.extraJavaOptions", QUICK_JAVA)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.files.maxPartitionBytes", "60000")
        .config("spark.sql.files.openCostInBytes", "0")
    )
    for key, value in config.get("spark", {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def source(spark: SparkSession, folder: str) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)


def striking(frame: DataFrame, faults: str) -> DataFrame:
    """Rows with a strike: whoever a file ``strike@<k>`` names by pid is killed when that key passes, in a task."""

    def strike(key):  # type: ignore[no-untyped-def]  # Spark warns of hints it cannot use
        planned = Path(faults) / f"strike@{key}"
        if planned.exists():
            pid = int(planned.read_text())
            planned.unlink(missing_ok=True)
            os.kill(pid, signal.SIGKILL)
        return key

    return frame.withColumn("k", F.udf(strike, LongType())("k"))


def dawdling(frame: DataFrame, folder: str) -> DataFrame:
    """Rows of which one holds its task up until a file ``wake`` is there, but only the first task that meets it. A
    second attempt of a task that meets it says so by a file ``again``."""

    def dawdle(key):  # type: ignore[no-untyped-def]
        if key == 77:
            try:
                (Path(folder) / "dawdle").unlink()
            except FileNotFoundError:
                if TaskContext.get().attemptNumber() > 0:
                    (Path(folder) / "again").touch()
                return key
            for _ in range(3000):
                if (Path(folder) / "wake").exists():
                    break
                time.sleep(0.1)
        return key

    return frame.withColumn("k", F.udf(dawdle, LongType())("k"))


def build(config: dict[str, Any], spark: SparkSession) -> tuple[hf.Job, dict[str, hf.StageStream]]:
    job = hf.Job(config.get("name", "drill"), spark, store=config["store"])
    frame = source(spark, config["input"])
    if config.get("strikes"):
        frame = striking(frame, config["strikes"])
    if config.get("slow"):
        frame = dawdling(frame, config["slow"])
    if config.get("random"):
        frame = frame.withColumn("v", (F.rand() * 1000).cast("bigint"))
    shape = config.get("shape", "one")
    if shape == "sources":
        left = job.read(frame, name="left")
        right = job.read(source(spark, config["input2"]), name="right")
        one = left.key_by("k").agg(n=hf.count(), total=hf.sum("v"))
        both = left.select("g", "v").union(right.select("g", "v")).key_by("g").agg(n=hf.count(), total=hf.sum("v"))
        streams = {"one": one, "both": both}
    else:
        rows = job.read(frame)
        if shape == "graph":
            return job, graph(rows, config["out"])
        if shape == "feedback":
            return job, fed_back(rows, config["out"], config.get("fed_where", "true"))
        if shape == "loops":
            return job, looped(job, rows, config)
        one = rows.key_by("k").agg(
            n=hf.count(), total=hf.sum("v"), low=hf.min("g"), high=hf.max("x"), middle=hf.mean("v")
        )
        streams = {"one": one}
        if shape == "two":
            streams["two"] = one.key_by("n").agg(keys=hf.count(), sum=hf.sum("total"))
        elif shape == "all":
            streams |= graph(rows, config["out"])
        elif shape == "over source":
            rows.select("k", "v").write("parquet", f"{config['out']}/raw", name="raw")
            rows.select("k").write("json", f"{config['out']}/keys", name="keys")
    one.write("parquet", f"{config['out']}/parquet")
    one.select("k", "n", "total").where("n > 1").write("json", f"{config['out']}/json")
    return job, streams


def graph(rows: hf.Stream, out: str) -> dict[str, hf.StageStream]:
    """Three levels: windows of keys, groups of windows, the best groups."""
    windows = (
        rows.key_by("k").window(hf.tumbling("10 s"), time="t", lateness="2 s").agg(n=hf.count(), total=hf.sum("v"))
    )
    groups = windows.key_by("window_start", "n").agg(keys=hf.count(), sum=hf.sum("total"))
    best = groups.key_by("window_start").top_k(3, by=["keys", ("n", "asc")])
    windows.write("parquet", f"{out}/windows")
    best.write("parquet", f"{out}/best")
    return {"groups": groups, "best": best}


class Favours:
    """Adds up ``v`` of rows whose group was among the best after the epoch before, and counts the news of that."""

    favoured = hf.states.value("bigint", default=0)
    news = hf.states.value("bigint", default=0)

    def rows(self, key: int, rows: list[dict[str, Any]], context: Any) -> Any:
        best = {row["g"] for row in context.feedback["best"]}
        context.state.favoured += sum(row["v"] or 0 for row in rows if row["g"] in best)
        context.state.news += sum(row["n"] for row in context.feedback["news"])
        yield {"k": key, "favoured": context.state.favoured, "news": context.state.news}


class Above:
    """Sees the same on the second level: which groups were best, in their order."""

    said = hf.states.value("string", default="")

    def rows(self, key: int, rows: list[dict[str, Any]], context: Any) -> Any:
        context.state.said += " ".join(row["g"] for row in context.feedback["best"]) + ";"
        yield {"rest": key, "said": context.state.said}


def fed_back(rows: hf.Stream, out: str, where: str) -> dict[str, hf.StageStream]:
    sums = rows.key_by("g", name="sums").agg(n=hf.count(), total=hf.sum("v"))
    best = sums.top_k(4, by=["total", ("g", "asc")], name="best")
    best.feedback("best", mode="complete")
    sums.where("n % 3 = 0").where(where).select("g", "n").feedback("news")
    favours = rows.select("k", "g", "v").key_by("k", name="favours")
    favoured = favours.process(Favours, "k bigint, favoured bigint, news bigint")
    above = favoured.key_by(F.expr("k % 5").alias("rest"), name="above").process(Above, "rest bigint, said string")
    favoured.write("parquet", f"{out}/favoured")
    return {"favours": favoured, "above": above, "best": best}


class Onward:
    """Counts the rows of a key, and passes each on to the next key as often as it says."""

    seen = hf.states.value("bigint", default=0)

    def rows(self, key: int, rows: list[dict[str, Any]], context: Any) -> Any:
        context.state.seen += len(rows)
        for row in rows:
            if row["lives"] > 0:
                yield {"k": key + 1, "lives": row["lives"] - 1}


def looped(job: hf.Job, rows: hf.Stream, config: dict[str, Any]) -> dict[str, hf.StageStream]:
    """Two loops: one that only gets anywhere, and one that tells a row that was taken twice."""
    import product_bundles

    register_pickle_by_value(product_bundles)
    known = rows.where("v IS NOT NULL")
    bundles = product_bundles.build(
        job, known.select(F.col("k").alias("product"), F.expr(f"pmod(v, {config['nodes']})").alias("other"))
    )
    bundles.output("bundles").write("parquet", f"{config['out']}/bundles")
    on = job.loop("k bigint, lives bigint", name="on", max_rounds=config.get("max_rounds", 1000))
    own = known.select("k", F.expr(f"pmod(v, {config['lives']})").alias("lives"))
    onward = own.union(on).key_by("k", name="onward").process(Onward, "k bigint, lives bigint")
    on.close(onward)
    onward.write("parquet", f"{config['out']}/onward")
    return {"bundles": bundles, "onward": onward}


def safety(config: dict[str, Any]) -> hf.Delta | hf.Shards | hf.Sync | hf.Eventual | None:
    match config.get("safety", "delta"):
        case "delta":
            return hf.Delta(
                config.get("backups", 1), every=config.get("copy_every", 1), store_every=config.get("store_every", 3)
            )
        case "shards":
            return hf.Shards(
                m=config.get("m", 3),
                n=config.get("n", 2),
                every=config.get("copy_every", 1),
                store_every=config.get("store_every", 3),
            )
        case "eventual":
            return hf.Eventual(**config.get("eventual", {}))
        case "sync":
            return hf.Sync(config.get("store_every", 3))
    return None


def recovery(config: dict[str, Any]) -> hf.Star | hf.Line | hf.Tree | hf.Auto | None:
    """By name and parameters, since a config is JSON."""
    kind, parameters = config.get("recovery", (None, {}))
    kinds = {"star": hf.Star, "line": hf.Line, "tree": hf.Tree, "auto": hf.Auto}
    return kinds[kind](**parameters) if kind else None


def autoscale(config: dict[str, Any]) -> hf.Autoscale | hf.PerExecutor | None:
    if "per_executor" in config:
        return hf.PerExecutor(**config["per_executor"])
    return hf.Autoscale(**config["autoscale"]) if "autoscale" in config else None


def drive(config: dict[str, Any], spark: SparkSession, during: Callable[[hf.Run], None] | None = None) -> None:
    """Run the job to the end of its input; ``during`` is called once it runs."""
    job, streams = build(config, spark)
    run = job.start(
        containers=config.get("containers", 2),
        threads=config.get("threads", 1),
        safety=safety(config),
        recovery=recovery(config),
        upload_limit=config.get("upload_limit"),
        slices=config.get("slices", 16),
        trigger=({"processingTime": config["pace"]} if "pace" in config else None)
        if config.get("flows")
        else {"availableNow": True},
        autoscale=autoscale(config),
        where=config.get("where", "auto"),
        preaggregate=config.get("preaggregate", "auto"),
        push=config.get("push", "auto"),
        prefetch=config.get("prefetch", 0),
        settle=config.get("settle", False),
    )
    try:
        if during is not None:
            during(run)
        run.process_all_available() if config.get("flows") else run.await_termination()
        for name, stream in streams.items():
            pq.write_table(run.state(stream).to_arrow(), f"{config['result']}/{name}.parquet")
        status = run.status()
        report = {
            "epoch": status.epoch,
            "rows": status.rows,
            "events": [[event.kind, event.text] for event in status.events],
            "event_epochs": [event.epoch for event in status.events],
            "epochs": {name: run.state(stream).epoch for name, stream in streams.items()},
        }
        Path(config["result"], "report.json").write_text(json.dumps(report))
    finally:
        run.stop()


WISHES = ("scale", "scale", "move", "threads")
BLOWS = ("kill", "kill", "kill all")


def anything(run: hf.Run, draw: random.Random, deeds: Sequence[str] = WISHES + BLOWS) -> str:
    """One thing at random that a person or fate may do to a run; what it was."""
    deed = draw.choice(deeds)
    number = draw.randint(1, 4)
    alive = [one.name for one in run.status().containers if one.alive]
    match deed:
        case "scale":
            run.scale(containers=number)
        case "move" if alive:
            slices = run._file.slices
            try:
                run.move(draw.sample(range(slices), min(slices, number)), to=draw.choice(alive))
            except hf.ContainerError:  # it may just be leaving, or dying
                return "nothing"
        case "move":
            return "nothing"
        case "threads":
            run.scale(threads=min(number, 2))
        case "kill" | "kill all":
            struck = []
            for name in alive if deed == "kill all" else alive[:1]:
                with contextlib.suppress(hf.ContainerError):  # it may just have left
                    run.kill(name)
                    struck.append(name)
            return " ".join([deed, *struck]) if struck else "nothing"
    return f"{deed} {number}"


def unrest(run: hf.Run, seed: int, until: str) -> None:
    """Wishes, one an epoch, until a file is there; then everything must come to rest."""
    draw, shell = random.Random(seed), run._shell
    while not Path(until).exists():
        before = shell.machine.committed
        print(f"epoch {before}: {anything(run, draw, WISHES)}", file=sys.stderr, flush=True)
        shell.wait_for(lambda before=before: shell.machine.committed > before, 30)  # type: ignore[misc]
    assert run.await_settled(300), run.status()


def rescale(run: hf.Run, at: int, to: int, die_in: str = "") -> None:
    """Scale once so many epochs are committed; die when the first slice comes to a phase of its move."""
    machine = run._shell.machine
    run._shell.wait_for(lambda: machine.committed >= at, 300)
    run.scale(containers=to)
    while die_in:
        if die_in in machine._elastic.moves.phases():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.001)


def wait(run: hf.Run, until: str) -> None:
    """Let it run until a file is there and everything has come to rest."""
    while not Path(until).exists():
        time.sleep(0.05)
    assert run.await_settled(300), run.status()


ACTS: tuple[Callable[..., None], ...] = (rescale, unrest, wait)


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    if config.get("strike_driver_at") is not None:
        Path(config["strikes"], f"strike@{config['strike_driver_at']}").write_text(str(os.getpid()))
    spark = session(config)
    try:
        drive(
            config, spark, next((partial(act, **config[act.__name__]) for act in ACTS if act.__name__ in config), None)
        )
    finally:
        spark.stop()


if __name__ == "__main__":
    try:
        main()
    except hf.HoldfastError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(3)
