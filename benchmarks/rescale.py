"""How long a job pauses when its containers go from two to four and back, with the state growing.

Three ways under the same kind of load (ChronoStream, Fig. 14): slices built from backups while the old owners go on;
stop, copy, go on; and Spark's own, offline: stop the query, repartition the checkpoint's state, start it. Each has half
of its own measured maximum to do, so Spark has less to catch up with. A gap is the longest distance between commits
around a change, divided by the median distance before it.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from common import choose, measure_apart, parser, report, scratch, session, table
from kit import baselines
from kit.changes import Change, measured, watch
from kit.contestants import ROCKSDB, Holdfast, SparkRocksDB, await_commit, under_load
from kit.load import Files
from kit.plots import millions, plot

RECONSTRUCT, STOP_AND_COPY, SPARK = "reconstruct", "stop-and-copy", "spark"
STEPS = (4, 2)
NOTE = "Four containers and Spark share them: what scaling out gains in speed cannot be seen here, only what it costs."


def scale_live(run: Any, containers: int) -> None:
    run.scale(containers=containers)


def holdfast(method: str, keys: int, options: argparse.Namespace) -> list[Change]:
    import holdfast as hf

    with session(options.memory) as spark, scratch() as folder:
        safety = hf.Delta(backups=1, every="3 s", store_every="60 s")
        made = Holdfast(spark, folder, Files(folder, keys), containers=2, safety=safety, recovery=hf.Chained())
        try:
            found = []
            with under_load(made, options.burst, options.calm) as loaded:
                for count in STEPS:
                    scale = baselines.scale_stopped if method == STOP_AND_COPY else scale_live
                    change = lambda count=count, scale=scale: scale(made.run, count)  # noqa: E731
                    found.append(watch(made, loaded, f"to {count}", change, options.calm))
            return found
        finally:
            made.stop()


def spark_offline(keys: int, options: argparse.Namespace) -> list[Change]:
    with session(options.memory, **ROCKSDB) as spark, scratch() as folder:
        made = SparkRocksDB(spark, folder, Files(folder, keys))
        try:
            found = []
            with under_load(made, options.burst // 4, options.calm) as loaded:
                for count in STEPS:
                    # Right after a commit, or the query would be stopped within a batch, which Spark refuses to skip.
                    start = await_commit(made, time.time())
                    made.stop()
                    spark._streamingCheckpointManager.repartition(str(made.checkpoint), count)
                    # The repartition is a batch of Spark's with a commit, but without rows: the job stood still.
                    repartitioned = time.time()
                    made.start()
                    one = measured(made, loaded, f"to {count}", start, repartitioned)
                    gap = min(at for at in made.times() if at > repartitioned) - max(
                        at for at in made.times() if at <= start
                    )
                    median = one.gap / one.epochs
                    found.append(Change(one.label, gap, gap / median, one.seconds, 0))
                    time.sleep(options.calm)
            return found
        finally:
            made.stop()


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--states", type=int, nargs="+", default=[500_000, 2_000_000, 8_000_000], help="keys, growing")
    made.add_argument("--calm", type=float, default=15, help="seconds before and after each change")
    made.add_argument("--burst", type=int, default=2_000_000, help="rows with which the maximum is measured")
    choose(made, [RECONSTRUCT, STOP_AND_COPY, SPARK])
    options = made.parse_args()
    if options.quick:
        options.states, options.calm, options.burst = [100_000], 5, 200_000
        options.contestants = [name for name in options.contestants if name != STOP_AND_COPY]
    if options.contestant:
        method, keys = options.contestant.split(":")
        found = spark_offline(int(keys), options) if method == SPARK else holdfast(method, int(keys), options)
        print(json.dumps([one.to_dict() for one in found]))
        return

    changes: dict[str, list[list[Change]]] = {
        name: [[Change(**one) for one in measure_apart(f"{name}:{keys}")] for keys in options.states]
        for name in options.contestants
    }
    shown = table(
        "Containers 2 → 4 → 2 at half load, trigger 1 s",
        *("way", "keys", "change", "gap s", "in median epochs", "settled s", "MB moved"),
    )
    for name, by_state in changes.items():
        for keys, both in zip(options.states, by_state, strict=True):
            for one in both:
                shown.add_row(
                    *(name, f"{keys:,}", one.label, f"{one.gap:.2f}", f"{one.epochs:.2f}", f"{one.seconds:.1f}"),
                    f"{one.bytes / 1e6:,.1f}",
                )

    def worst(name: str, field: str) -> list[float | int]:
        """By state, the worse of the two changes."""
        return [max(getattr(one, field) for one in both) for both in changes.get(name, [])]

    result: dict[str, Any] = {
        "gap_epochs": max(worst(RECONSTRUCT, "epochs"), default=None),
        "gap_epochs_stop_and_copy": max(worst(STOP_AND_COPY, "epochs"), default=None),
        "moved_bytes": max(worst(RECONSTRUCT, "bytes"), default=None),
        "moved_bytes_stop_and_copy": max(worst(STOP_AND_COPY, "bytes"), default=None),
        "states": options.states,
        "vs_spark": None,
    }
    if RECONSTRUCT in changes and SPARK in changes:
        ratios = [theirs / ours for ours, theirs in zip(worst(RECONSTRUCT, "gap"), worst(SPARK, "gap"), strict=True)]
        result |= {"vs_spark": min(ratios), "vs_spark_by_state": [round(one, 2) for one in ratios]}
    for name, field in ((RECONSTRUCT, "gap_epochs_by_state"), (STOP_AND_COPY, "gap_epochs_stop_and_copy_by_state")):
        result[field] = [round(one, 3) for one in worst(name, "epochs")]
    result["gap_seconds_spark_by_state"] = [round(one, 3) for one in worst(SPARK, "gap")]

    question = "How long does a job pause when it is rescaled?"
    with plot("rescale", question, "ChronoStream Fig. 14", NOTE, quick=options.quick) as (axis,):
        for name in changes:
            axis.plot(options.states, worst(name, "gap"), marker="o", label=name)
        millions(axis, options.states)
        axis.set_yscale("log")
        axis.set_ylabel("longest gap between commits, seconds")
    report(shown, result)


if __name__ == "__main__":
    main()
