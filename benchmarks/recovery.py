"""How long from a kill to the next commit, against Spark's own loss of an executor.

Under half load, trigger 1 s, a copy every three seconds (ChronoStream, Fig. 19 and 20): one, two and three of four
containers killed, with as many backups, the state growing; one container killed with one to three peers to recover it;
intervals of 1 to 30 s; and more losses than backups, where store and log must do. Then both on the same standalone
cluster, an executor killed: Holdfast's containers on executors, and Spark with the same keys in RocksDB. The kill comes
a fixed time after a commit, the same for everybody, so that the next commit always needs what was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

from common import choose, console, measure_apart, median, parser, report, scratch, session, table
from kit.changes import SETTLE_SECONDS
from kit.contestants import ROCKSDB, Contestant, Holdfast, Loaded, SparkRocksDB, await_commit, cpu_seconds, under_load
from kit.load import Files, undisturbed
from kit.plots import millions, plot

CONTAINERS = 4
GROUPS = ("losses", "peers", "intervals", "beyond", "cluster", "spark")
NOTE = "All peers share them: the work of each can be seen to fall with more peers, the time only in part."
RECOVERIES = ("activated", "restored")  # kinds of events; the first with bytes tells what was loaded


def strike(made: Contestant, kill: Callable[[], object]) -> float:
    """Seconds from a kill to the next commit."""
    await_commit(made, time.time())
    time.sleep(0.3)
    killed = time.time()
    kill()
    return await_commit(made, killed) - killed


def holdfast(plan: dict[str, Any], keys: int, options: argparse.Namespace) -> dict[str, Any]:
    """``plan``: containers, backups, every, losses, kills (how often)."""
    import holdfast as hf

    with session(options.memory) as spark, scratch() as folder:
        safety = hf.Delta(backups=plan["backups"], every=plan["every"], store_every="60 s")
        count = plan["containers"]
        made = Holdfast(spark, folder, Files(folder, keys), containers=count, safety=safety, recovery=hf.Chained())
        try:
            with under_load(made, options.burst, options.calm) as loaded:
                kills = []
                for number in range(plan["kills"]):
                    if number:
                        back_to(made, count)
                        time.sleep(options.calm)
                    # Anywhere between two copies: what must be replayed depends on it.
                    time.sleep(random.Random(number).uniform(0, min(plan["pause"], options.calm)))
                    kills.append(lose(made, plan["losses"], loaded))
                    settle(made)
            return {"kills": kills, "median": undisturbed(made.times(), loaded.calm_from, loaded.calm_to)}
        finally:
            made.stop()


def lose(made: Holdfast, losses: int, loaded: Loaded) -> dict[str, Any]:
    pids = made.pids()
    victims = sorted(pids)[:losses]
    survivors = {name: pid for name, pid in pids.items() if name not in victims}
    # What they would have used anyway, at this load, is not the recovery's.
    first, at = cpu_seconds(survivors), time.monotonic()
    time.sleep(3)
    before, then = cpu_seconds(survivors), time.monotonic()
    usual = {name: (before[name] - first[name]) / (then - at) for name in survivors}
    start = time.time()
    seconds = strike(made, lambda: [made.run.kill(name) for name in victims])
    after, now = cpu_seconds(survivors), time.monotonic()
    work = [after[name] - before[name] - usual[name] * (now - then) for name in survivors if name in after]
    told = [sum(event.bytes for event in made.events(start, kind)) for kind in RECOVERIES]
    return {"seconds": seconds, "cpu": work, "bytes": next(filter(None, told), 0), "peers": len(survivors)}


def settle(made: Holdfast) -> None:
    if made.run.await_settled(SETTLE_SECONDS) is False:
        raise SystemExit(f"Not settled within {SETTLE_SECONDS:.0f} s of a kill.")


def back_to(made: Holdfast, count: int) -> None:
    if len(made.pids()) < count:
        made.run.scale(containers=count)
    settle(made)


def on_cluster(own: bool, keys: int, options: argparse.Namespace) -> dict[str, Any]:
    """One executor of a standalone cluster killed: with Holdfast's container on it, or with Spark's state in it."""
    import holdfast as hf
    from tools.cluster import Cluster

    with Cluster(workers=options.workers, cores=1, memory=options.executor_memory) as cluster, scratch() as folder:
        settings = {**cluster.settings, **({} if own else ROCKSDB), "spark.sql.shuffle.partitions": options.workers}
        if not own:
            del settings["spark.task.cpus"]  # Spark has no container beside its tasks
        with session(options.driver_memory, **settings) as spark:
            files = Files(folder, keys)
            made: Holdfast | SparkRocksDB
            if own:
                safety = hf.Delta(backups=1, every="3 s", store_every="60 s")
                made = Holdfast(spark, folder, files, containers=options.workers, safety=safety, recovery=hf.Chained())
            else:
                made = SparkRocksDB(spark, folder, files)
            try:
                burst = options.burst if own else options.burst // 4
                with under_load(made, burst, options.calm) as loaded:
                    victim = cluster.executors()[0]
                    seconds = strike(made, lambda: os.kill(victim, signal.SIGKILL))
                    time.sleep(options.calm)
                    found = undisturbed(made.times(), loaded.calm_from, loaded.calm_to)
                return {"kills": [{"seconds": seconds}], "median": found}
            finally:
                made.stop()


def plans(options: argparse.Namespace) -> dict[str, tuple[str, dict[str, Any], int]]:
    """Every run by its name: group, plan, keys."""
    usual = {"containers": CONTAINERS, "backups": 1, "every": "3 s", "losses": 1, "kills": options.kills, "pause": 3}
    middle = options.states[len(options.states) // 2]
    found: dict[str, tuple[str, dict[str, Any], int]] = {}
    for keys in options.states:
        for losses in options.losses:
            found[f"losses:{losses}:{keys}"] = ("losses", usual | {"losses": losses, "backups": losses}, keys)
    for peers in options.peers:
        if peers != CONTAINERS - 1:  # that is the one loss of four
            found[f"peers:{peers}:{middle}"] = ("peers", usual | {"containers": peers + 1}, middle)
    for every in options.intervals:
        plan = usual | {"every": f"{every} s", "pause": every, "kills": max(3, options.kills)}
        found[f"intervals:{every}:{middle}"] = ("intervals", plan, middle)
    found[f"beyond:2:{middle}"] = ("beyond", usual | {"losses": 2}, middle)
    for group in ("cluster", "spark"):
        found[f"{group}:1:{options.states[-1]}"] = (group, {}, options.states[-1])
    return {name: one for name, one in found.items() if one[0] in options.contestants}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--states", type=int, nargs="+", default=[500_000, 2_000_000, 8_000_000], help="keys, growing")
    made.add_argument("--losses", type=int, nargs="+", default=[1, 2, 3], help=f"of {CONTAINERS} containers")
    made.add_argument("--peers", type=int, nargs="+", default=[1, 2, 3], help="that recover one container")
    made.add_argument("--intervals", type=int, nargs="+", default=[1, 3, 10, 30], help="seconds between copies")
    made.add_argument("--kills", type=int, default=3, help="in each run; the median counts")
    made.add_argument("--calm", type=float, default=12, help="seconds before and after each kill")
    made.add_argument("--burst", type=int, default=2_000_000, help="rows with which the maximum is measured")
    made.add_argument("--workers", type=int, default=4, help="of the cluster, a core and an executor each")
    made.add_argument("--executor-memory", default="1500m", help="on the cluster, the same for both")
    made.add_argument("--driver-memory", default="2g", help="on the cluster, the same for both")
    choose(made, GROUPS)
    options = made.parse_args()
    if options.quick:
        options.states, options.losses, options.peers, options.intervals = [100_000], [1], [1, 3], []
        options.kills, options.calm, options.burst, options.workers = 1, 5, 200_000, 2
        options.contestants = [name for name in options.contestants if name in ("losses", "peers", "spark")]
    runs = plans(options)
    if options.contestant:
        group, plan, keys = runs[options.contestant]
        if group in ("cluster", "spark"):
            print(json.dumps(on_cluster(group == "cluster", keys, options)))
        else:
            print(json.dumps(holdfast(plan, keys, options)))
        return

    measured = {name: measure_apart(name) for name in runs}
    shown = table(
        "From a kill to the next commit, half load, trigger 1 s",
        *("run", "keys", "seconds", "all kills", "calm epoch s", "CPU s a peer", "MB a peer"),
    )
    seconds = {name: median([kill["seconds"] for kill in one["kills"]]) for name, one in measured.items()}
    for name, one in measured.items():
        kills = one["kills"]
        every = ", ".join(f"{kill['seconds']:.2f}" for kill in kills)
        group, number, _ = name.split(":")
        work = (f"{each_cpu(kills):.2f}", f"{each_bytes(kills) / 1e6:,.1f}") if "cpu" in kills[0] else ("–", "–")
        shown.add_row(
            f"{group} {number}", f"{runs[name][2]:,}", f"{seconds[name]:.2f}", every, f"{one['median']:.2f}", *work
        )

    largest, middle = options.states[-1], options.states[len(options.states) // 2]
    by_peers = {peers: f"peers:{peers}:{middle}" for peers in options.peers if f"peers:{peers}:{middle}" in measured}
    if f"losses:1:{middle}" in measured:
        by_peers[CONTAINERS - 1] = f"losses:1:{middle}"
    ours, theirs = seconds.get(f"losses:1:{largest}"), seconds.get(f"spark:1:{largest}")
    on = "cluster" if f"cluster:1:{largest}" in seconds else "local"
    there = seconds.get(f"cluster:1:{largest}", ours)
    result: dict[str, Any] = {
        "seconds": ours,
        "seconds_by_losses": {str(n): seconds.get(f"losses:{n}:{largest}") for n in options.losses},
        "seconds_by_state": {str(keys): seconds.get(f"losses:1:{keys}") for keys in options.states},
        "seconds_by_peers": {str(peers): seconds[name] for peers, name in by_peers.items()},
        "cpu_seconds_by_peers": {str(peers): each_cpu(measured[name]["kills"]) for peers, name in by_peers.items()},
        "bytes_by_peers": {str(peers): each_bytes(measured[name]["kills"]) for peers, name in by_peers.items()},
        "seconds_by_interval": {str(s): seconds.get(f"intervals:{s}:{middle}") for s in options.intervals},
        "seconds_beyond_backups": seconds.get(f"beyond:2:{middle}"),
        "cluster_seconds": seconds.get(f"cluster:1:{largest}"),
        "spark_seconds": theirs,
        "vs_spark": theirs / there if theirs and there else None,
        "vs_spark_with_holdfast_on": on,
    }
    draw(options, seconds, by_peers, measured)
    if on == "local":
        console.print("vs_spark compares containers beside the driver with Spark on a cluster: run 'cluster' for more.")
    report(shown, {name: _rounded(value) for name, value in result.items()})


def each_cpu(kills: list[dict[str, Any]]) -> float:
    """CPU seconds of the recovery for one peer, over what the load takes."""
    return median([sum(kill["cpu"]) / len(kill["cpu"]) for kill in kills])


def each_bytes(kills: list[dict[str, Any]]) -> float:
    return median([kill["bytes"] / kill["peers"] for kill in kills])


def draw(options: argparse.Namespace, seconds: dict[str, float], by_peers: dict[int, str], measured: Any) -> None:
    question = "How long from a kill to the next commit?"
    paper = "ChronoStream Fig. 19 and 20"
    with plot("recovery", question, paper, NOTE, panels=3, quick=options.quick) as (left, centre, right):
        for losses in options.losses:
            names = {keys: f"losses:{losses}:{keys}" for keys in options.states}
            found = {keys: seconds[name] for keys, name in names.items() if name in seconds}
            left.plot(list(found), list(found.values()), marker="o", label=f"{losses} of {CONTAINERS} killed")
        largest = options.states[-1]
        for group, mark in (("cluster", "s"), ("spark", "x")):
            if f"{group}:1:{largest}" in seconds:
                label = "Holdfast on a cluster" if group == "cluster" else "Spark, RocksDB, on a cluster"
                left.plot([largest], [seconds[f"{group}:1:{largest}"]], mark, markersize=9, label=label)
        millions(left, options.states)
        left.set_yscale("log")
        left.set_ylabel("seconds")
        peers = sorted(by_peers)
        centre.plot(peers, [seconds[by_peers[one]] for one in peers], marker="o", label="seconds to the next commit")
        work = [each_cpu(measured[by_peers[one]]["kills"]) for one in peers]
        centre.plot(peers, work, "--", marker="^", label="CPU seconds of each peer")
        centre.set_xticks(peers)
        centre.set_xlabel("peers that recover one container")
        centre.set_ylim(bottom=0)
        middle = options.states[len(options.states) // 2]
        for every in options.intervals:
            name = f"intervals:{every}:{middle}"
            if name in measured:
                all_of = [kill["seconds"] for kill in measured[name]["kills"]]
                right.vlines(every, min(all_of), max(all_of), color="black")
                right.plot([every], [seconds[name]], "o", color="tab:blue")
        right.set_xlabel("seconds between copies")
        right.set_ylabel("seconds to the next commit: all, and the median")
        right.set_ylim(bottom=0)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
