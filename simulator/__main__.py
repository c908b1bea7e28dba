"""Runs scenarios: ``python -m simulator --seed 7 --trace``, or ``--seeds 200 --first 1`` for many."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from simulator.scenario import IN_TURN, SCENARIOS, SHIPPED, Broken, loaded, scenario


def main(arguments: list[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    made.add_argument("--scenario", choices=sorted(SCENARIOS), help="default: the quick ones in turn")
    made.add_argument("--seed", type=int, help="one run, the same every time")
    made.add_argument("--trace", action="store_true", help="print everything that happened")
    made.add_argument("--seeds", type=int, default=20, help="so many runs, one after the other")
    made.add_argument("--first", type=int, default=1, help="seed of the first of them")
    made.add_argument("--plant", metavar="MODULE:CLASS", help="a master with a bug: the scenario job must find it")
    made.add_argument("--shipped", action="store_true", help="with --scenario job: the shipped containers and ledger")
    options = made.parse_args(arguments)
    if options.shipped and options.scenario != "job":
        made.error("--shipped goes with --scenario job")
    planted = {"make_master": loaded(options.plant)} if options.plant else {}
    names = ["job"] if planted else [options.scenario] if options.scenario else list(IN_TURN)
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    began, failed = time.perf_counter(), []
    for seed in seeds:
        name = names[seed % len(names)]
        failure = run(name, seed, options.trace, planted, tell=options.seed is not None, shipped=options.shipped)
        if failure:
            failed.append(f"{name} {seed}")
    if options.seed is None:
        print(f"{len(seeds)} scenarios in {time.perf_counter() - began:.1f} s, {len(failed)} failed.")
    if failed:
        print(f"Failed, by seed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(name: str, seed: int, trace: bool, planted: Mapping[str, Any], *, tell: bool, shipped: bool = False) -> bool:
    """One run. True if it failed: anything that a machine raises counts, not only broken invariants."""
    one = (loaded(SHIPPED) if shipped else scenario(name))(seed, trace, **planted)
    failure: Exception | None = None
    told = ""
    try:
        told = one.run()
    except Exception as found:
        failure = found
    if trace:
        print("\n".join(one.world.notes))
    if failure:
        kind = "" if isinstance(failure, Broken) else f"{type(failure).__name__}: "
        print(f"{name}, seed {seed}: FAILED\n{kind}{failure}", file=sys.stderr)
    elif tell:
        print(f"{name}, seed {seed}: {told}")
    return failure is not None


if __name__ == "__main__":
    sys.exit(main())
