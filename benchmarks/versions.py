"""What this checkout costs against another one: CPU time and wall time a row, and the median of small epochs.

``--other`` is a folder with another version of the source. Both run the benchmarks of *this* checkout (``latency`` and
``aggregate``), on the same data, in interleaved pairs: old and new take turns, in the opposite order every other round,
and each is compared only with its own partner. The identity baseline of ``latency`` runs once a round. What counts is
the median of the pairs' ratios, new to old; the spread is that of all pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from common import Clicks, console, median, parser, report, table

HERE = Path(__file__).parent
QUESTIONS = ("aggregate", "latency")


def run(checkout: Path, benchmark: str, contestant: str, *arguments: object) -> dict[str, list[float]]:
    """One contestant of a benchmark in a process of its own, with the source of ``checkout``."""
    command = [sys.executable, HERE / f"{benchmark}.py", "--contestant", contestant, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONWARNINGS"] = "ignore"
    with console.status(f"{benchmark}: {contestant} of {checkout.name} ..."):
        done = subprocess.run(
            [str(one) for one in command], env=environment, capture_output=True, text=True, check=False
        )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"{benchmark} of {checkout} failed:\n{done.stdout}{done.stderr[-8000:]}")
    found: dict[str, list[float]] = json.loads(lines[-1])
    return found


def interleaved(
    measure: Callable[[Path, int], dict[str, float]], old: Path, new: Path, rounds: int
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """(old, new) of every round."""
    found = []
    for number in range(rounds):
        turn = (old, new) if number % 2 == 0 else (new, old)
        measured = {checkout: measure(checkout, number) for checkout in turn}
        found.append((measured[old], measured[new]))
        console.print(f"  round {number + 1} of {rounds}: old {measured[old]}, new {measured[new]}")
    return found


def aggregate(options: argparse.Namespace, new: Path) -> list[tuple[dict[str, float], dict[str, float]]]:
    clicks = Clicks(options.rows, options.rows // 10, options.rows // 10)
    clicks.make()
    sizes = ("--rows", clicks.rows, "--keys", clicks.keys, "--epoch-rows", clicks.epoch_rows)

    def measure(checkout: Path, number: int) -> dict[str, float]:
        found = run(checkout, "aggregate", "holdfast", *sizes)
        return {
            "cpu_us_a_row": 1e6 * median(found["cpu"]) / clicks.rows,
            "wall_us_a_row": 1e6 * median(found["seconds"]) / clicks.rows,
        }

    return interleaved(measure, options.other, new, options.pairs)


def latency(options: argparse.Namespace, new: Path) -> list[tuple[dict[str, float], dict[str, float]]]:
    sizes = ("--seconds", options.seconds, "--turns", 1)
    baselines: dict[int, float] = {}

    def measure(checkout: Path, number: int) -> dict[str, float]:
        if number not in baselines:
            baselines[number] = median(run(checkout, "latency", "baseline", *sizes)["milliseconds"])
        ours = median(run(checkout, "latency", "holdfast", *sizes)["milliseconds"])
        return {"p50_ms": ours, "p50_ratio_to_identity": ours / baselines[number]}

    return interleaved(measure, options.other, new, options.pairs)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--other", type=Path, required=True, help="the checkout to compare with")
    made.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="NAME")
    made.add_argument("--pairs", type=int, default=7)
    made.add_argument("--rows", type=int, default=20_000_000, help="of aggregate; a tenth as many keys")
    made.add_argument("--seconds", type=int, default=30, help="of latency, a turn")
    options = made.parse_args()
    options.other = options.other.resolve()
    if not (options.other / "src" / "holdfast").is_dir():
        raise SystemExit(f"{options.other} is no checkout of Holdfast.")
    if options.quick:
        options.pairs, options.rows, options.seconds = 1, 800_000, 10

    shown = table(f"new to old, medians of {options.pairs} pairs", "figure", "old", "new", "new ÷ old", "all pairs")
    result: dict[str, float | int] = {"pairs": options.pairs}
    for question in options.questions:
        found = {"aggregate": aggregate, "latency": latency}[question](options, HERE.parent)
        for name in found[0][0]:
            ratios = [new[name] / old[name] for old, new in found]
            result[f"{name}_new_to_old"] = median(ratios)
            shown.add_row(
                *(
                    name,
                    f"{median([old[name] for old, _ in found]):.3f}",
                    f"{median([new[name] for _, new in found]):.3f}",
                ),
                *(f"{median(ratios):.3f}", f"{min(ratios):.3f} … {max(ratios):.3f}"),
            )
    report(shown, result)


if __name__ == "__main__":
    main()
