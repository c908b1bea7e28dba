"""What it costs to cut the state into slices: throughput with 1, 10, 128 and 1024 of them.

One container with one thread takes the same rows again and again (ChronoStream, Fig. 21). The rate is that of the
epochs after the first, from commit to commit, so that starting a container is not in it. The numbers of slices take
turns, and each is compared with the single slice of its own round.
"""

from __future__ import annotations

import json
from pathlib import Path

from common import Clicks, measure_apart, median, parser, report, scratch, session, table
from kit.load import commit_times
from kit.pairs import Pairs, pairs
from kit.plots import plot
from pyspark.sql import SparkSession

SLICES = (1, 10, 128, 1024)


def rate(spark: SparkSession, clicks: Clicks, slices: int, folder: Path) -> float:
    import holdfast as hf

    job = hf.Job("slices", spark, store=str(folder / "store"))
    counted = job.read(clicks.stream(spark)).key_by("k").agg(n=hf.count(), total=hf.sum("v"))
    counted.write("noop", mode="update")
    with job.start(containers=1, threads=1, slices=slices, trigger={"availableNow": True}) as run:
        run.await_termination()
        times = list(commit_times(folder / "store" / "main" / "commit").values())
        keys = run.status().stages[0].keys
    if len(times) < 3 or not 0.9 * clicks.keys < keys <= clicks.keys:
        raise SystemExit(f"{len(times)} commits and {keys:,} keys: this is not what was to be measured.")
    return clicks.epoch_rows * (len(times) - 1) / (times[-1] - times[0])


def compete(clicks: Clicks, rounds: int, memory: str) -> None:
    """All of them in one process: they differ in the slices alone, and pairs should share everything else."""
    with session(memory) as spark:

        def measure(slices: str) -> float:
            with scratch() as folder:
                return rate(spark, clicks, int(slices), folder)

        for slices in SLICES:
            measure(str(slices))  # compiles and warms up
        found = pairs(measure, "1", [str(slices) for slices in SLICES[1:]], rounds)
    print(json.dumps({name: {"base": one.base, "rates": one.rates} for name, one in found.items()}))


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=8_000_000)
    made.add_argument("--keys", type=int, default=1_000_000)
    made.add_argument("--epoch-rows", type=int, default=1_000_000)
    made.add_argument("--rounds", type=int, default=9, help="interleaved rounds; the median counts")
    options = made.parse_args()
    if options.quick:
        options.rows, options.keys, options.epoch_rows, options.rounds = 1_200_000, 100_000, 300_000, 3
    clicks = Clicks(options.rows, options.keys, options.epoch_rows)
    if options.contestant:
        compete(clicks, options.rounds, options.memory)
        return

    clicks.make()
    measured = {name: Pairs(tuple(one["base"]), tuple(one["rates"])) for name, one in measure_apart("all").items()}
    shown = table(
        f"{clicks.rows:,} rows, {clicks.keys:,} keys, one container, one thread; {options.rounds} rounds",
        *("slices", "rows/s", "cost against 1", "middle half of the rounds"),
    )
    shown.add_row("1", f"{median(measured['10'].base):,.0f}", "–", "–")
    result: dict[str, object] = {}
    for name, one in measured.items():
        shown.add_row(name, f"{median(one.rates):,.0f}", f"{one.cost:.2%}", one.spread)
        result |= {f"cost_{name}": one.cost, f"spread_{name}": one.spread}
    result["rounds"] = options.rounds
    with plot(
        "slices", "What does it cost to cut the state into slices?", "ChronoStream Fig. 21", quick=options.quick
    ) as (axis,):
        rates = [list(measured["10"].base), *(list(one.rates) for one in measured.values())]
        axis.boxplot([[rate / 1e6 for rate in one] for one in rates], tick_labels=[str(number) for number in SLICES])
        axis.set_xlabel("slices, on one container with one thread")
        axis.set_ylabel("million rows a second")
        axis.set_ylim(bottom=0)
    report(shown, result)


if __name__ == "__main__":
    main()
