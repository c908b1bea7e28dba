"""A hub that is changed at random while files come, in a process of its own: what dies is a real driver.

Every change that has returned goes to a file as a line, so that whoever kills it knows what it may hold it to.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import driver
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf

MOST = 12
FILTERS = ("v > 0", "v % 2 = 0", "g <> 'g1'", "k < 10 OR x > 0", "true")


def draw(base: Path, spark: SparkSession) -> hf.Hub:
    hub = hf.Hub("shop", spark, store=base / "store")
    hub.read(driver.source(spark, str(base / "input")), name="rows")
    sums = hub.job("totals").stream("rows").key_by("k", name="sums").agg(n=hf.count(), total=hf.sum("v"))
    sums.write("parquet", str(base / "out"))
    top = hub.job("tops").stream("rows").where("v IS NOT NULL").select("g", "v", "k", "x")
    top.key_by("g", name="top").top_k(MOST, by=[F.col("v").desc(), F.col("k").asc(), F.col("x").asc()])
    # It follows the changes of both.
    hub.job("over").stream("tops/top").key_by("rank", name="ranks").agg(n=hf.count(), total=hf.sum("v"))
    hub.job("under").stream("totals/sums").key_by("n", name="sizes").agg(keys=hf.count(), total=hf.sum("total"))
    return hub


def query(number: int) -> str:
    return f"SELECT k, count(*) AS n, sum(v) AS total FROM rows WHERE k % {2 + number % 5} = 0 GROUP BY k"


def change(run: Any, hub: hf.Hub, dice: random.Random, acks: Any) -> None:
    said: dict[str, Any]
    live = [job.name for job in run.jobs if job.name.startswith("live")]
    kind = dice.choice(["where", "add", "remove", "add", "reset", "k"])
    if kind == "reset":
        said = {"reset": dice.choice(["totals/sums", "tops/top"])}
        made = run.update(said["reset"], reset=True)
    elif kind == "k":
        least = min([MOST, *(one["k"] for one in run.hub._updates.made if "k" in one)])
        said = {"k": max(1, least - dice.randrange(3))}
        made = run.update("tops/top", **said)
    elif kind == "where":
        said = {"where": dice.choice(FILTERS)}
        made = run.update("totals/sums", **said)
    elif kind == "add" and len(live) < 4:
        number = dice.randrange(1_000_000)
        said = {"add": f"live{number}"}
        job = hub.job(f"live{number}")
        job.sql(query(number), name="counts")
        made = run.add(job)
    elif live:
        said = {"remove": dice.choice(live)}
        made = run.remove(said["remove"])
    else:
        return
    acks.write(json.dumps({**said, "version": made.version, "epoch": made.epoch}) + "\n")
    acks.flush()
    os.fsync(acks.fileno())


def main(base: Path, seed: int, seconds: float, *, until_done: bool) -> None:
    spark = driver.session({"master": "local[2]"})
    spark.sparkContext.setLogLevel("OFF")
    hub, dice = draw(base, spark), random.Random(seed)
    over = threading.Event()

    def flow() -> None:
        waiting = sorted((base / "all").iterdir())
        while waiting and not over.wait(0.2):
            file = waiting.pop(0)
            file.rename(base / "input" / file.name)

    with (
        hub.start(containers=2, slices=4, safety=hf.Delta(store_every="1 h")) as run,
        (base / "acks").open("a") as acks,
    ):
        feeding = threading.Thread(target=flow)
        feeding.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            change(run, hub, dice, acks)
            time.sleep(dice.random() * 0.2)
        if until_done:
            feeding.join()
            run.process_all_available()
        over.set()
        feeding.join()
        found = {}
        for job in run.jobs:
            for stage in job.stages:
                found[f"{job.name}/{stage}"] = run.state(f"{job.name}/{stage}").to_arrow().to_pylist()
        (base / "state.json").write_text(json.dumps({"epoch": run.status().epoch, "states": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), until_done=sys.argv[4] == "done")
