"""SQL over streams and over live state: the same as Spark's, always of one epoch, and how quick a question is.

Random queries (25 jobs of 20, a container killed in every tenth job) against Spark SQL in batch over the same rows; the
constructs that no stream has, each refused with its replacement; questions under load, with kills and moves, over two
stages whose totals are equal at every epoch; and a question for one key against ``to_df().where(key)``, in turns.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from common import console, median, parser, report, scratch, session, spread, table
from pyspark.sql import SparkSession

import holdfast as hf

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "end_to_end"), str(TESTS / "api")]
from sql_jobs import ASKED, play  # noqa: E402 - the tests are no package
from test_sql_refusals import REFUSED, a_job  # noqa: E402

BOTH = (
    "SELECT a.s AS one, b.s AS other FROM (SELECT sum(n) AS s FROM by_k) a "
    "JOIN (SELECT sum(n) AS s FROM by_g) b ON true"
)


def equal_queries(spark: SparkSession, jobs: int, each: int) -> tuple[int, int, int]:
    """How many gave Spark's rows, of how many, and how many of those had rows."""
    right = asked = shown = 0
    for seed in range(jobs):
        kinds = [ASKED[(seed * each + at) % len(ASKED)] for at in range(each)]
        with scratch() as folder, console.status(f"queries: job {seed + 1} of {jobs} ..."):
            for query, found, truth in play(spark, folder, seed, kinds, kill=seed % 10 == 0):
                asked += 1
                shown += bool(truth)
                right += found == truth
                if found != truth:
                    console.print(f"seed {seed}: {query.text}", markup=False)
    return right, asked, shown


def refused() -> int:
    found = 0
    for text, _, instead in REFUSED:
        try:
            a_job().sql(text)
        except hf.PlanError as error:
            found += instead in error.todo
    return found


def live(spark: SparkSession, folder: Path, questions: int, turns: int, keys: int) -> dict[str, Any]:
    """Questions under load, then questions for one key in turns with Spark's own way."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", 20_000).load()
    job = hf.Job("live", spark, store=folder / "store")
    job.read(rows.selectExpr(f"value % {keys} AS k", "value % 1000 AS g"), name="rows")
    job.sql("SELECT k, count(*) AS n FROM rows GROUP BY k", "by_k")
    job.sql("SELECT g, count(*) AS n FROM rows GROUP BY g", "by_g")
    with job.start(containers=2, slices=16, trigger="1 second") as run:
        assert run._shell.wait_for(lambda: run._shell.machine.committed >= 3, 120)
        over = threading.Event()
        trouble = threading.Thread(target=_trouble, args=(run, over), daemon=True)
        trouble.start()
        broken, epochs = 0, set()
        with console.status("questions under load ..."):
            for _ in range(questions):
                found = run.sql(BOTH)
                row = found.to_pylist()[0]
                broken += row["one"] != row["other"]
                epochs.add(found.epoch)
        over.set()
        trouble.join()
        run.await_settled()
        ours, theirs = [], []
        for turn in range(turns):
            key = turn * 7 % keys
            began = time.perf_counter()
            mine = run.sql(f"SELECT k, n FROM by_k WHERE k = {key}").to_pylist()
            ours.append(time.perf_counter() - began)
            began = time.perf_counter()
            its = run.state("by_k").to_df().where(f"k = {key}").collect()
            theirs.append(time.perf_counter() - began)
            assert mine[0]["k"] == its[0]["k"] == key
        kinds = [event.kind for event in run.status().events]
    return {
        "questions": questions,
        "broken": broken,
        "epochs": len(epochs),
        "kills": kinds.count("lost"),
        "key_ms": [1000 * one for one in ours],
        "spark_ms": [1000 * one for one in theirs],
    }


def _trouble(run: hf.Run, over: threading.Event) -> None:
    number = 0
    while not over.wait(4.0):
        alive = [one.name for one in run.status().containers if one.alive]
        if number % 3 == 0 and alive:
            run.kill(alive[0])
        else:
            run.scale(containers=2 + number % 2)
        number += 1


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--jobs", type=int, default=25)
    made.add_argument("--each", type=int, default=20, help="queries of a job")
    made.add_argument("--questions", type=int, default=1000)
    made.add_argument("--turns", type=int, default=30)
    made.add_argument("--keys", type=int, default=100_000)
    options = made.parse_args()
    if options.quick:
        options.jobs, options.each, options.questions, options.turns = 1, 6, 40, 5
    said = refused()
    with session(options.memory) as spark:
        right, asked, shown = equal_queries(spark, options.jobs, options.each)
        with scratch() as folder:
            found = live(spark, folder, options.questions, options.turns, options.keys)
    ratio = median(found["key_ms"]) / median(found["spark_ms"])
    seen = table("SQL", "what", "found", "of")
    seen.add_row("random queries equal to Spark in batch", str(right), f"{asked} ({shown} with rows)")
    seen.add_row("constructs refused with their replacement", str(said), str(len(REFUSED)))
    under = f"{found['questions']} in {found['epochs']} epochs, {found['kills']} kills"
    seen.add_row("questions under load with two epochs in them", str(found["broken"]), under)
    for what, name, more in (("run.sql", "key_ms", ""), ("to_df().where", "spark_ms", f"ratio {ratio:.3f}")):
        seen.add_row(f"a key by {what}, ms", f"{median(found[name]):.1f} {spread(found[name])}", more)
    report(
        seen,
        {
            "sql_equal": right,
            "sql_asked": asked,
            "sql_refused": said,
            "sql_refusals": len(REFUSED),
            "broken": found["broken"],
            "questions": found["questions"],
            "kills": found["kills"],
            "key_query_vs_spark": round(ratio, 4),
        },
    )


if __name__ == "__main__":
    main()
