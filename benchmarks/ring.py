"""How the ring scales: hops of a route, delivery while nodes fail, and what keeping it up costs, against its size.

Everything here is simulated: virtual time, the shipped machines, one core. SR3 emulates up to 5,000 nodes (§5.1); so
do we. Each ring is built by joins in quick succession, left alone until leaf sets and tables are what they should be,
asked for keys from everywhere, weighed while nothing happens, and then loses a tenth of its nodes under load.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from common import console, median, parser, report, table
from kit.plots import beside_paper, verdict
from matplotlib.axes import Axes

from holdfast.ring.overlay.messages import wire_bytes
from simulator.ring_world import RingWorld

JOINING = 25.0
"""Virtual seconds in which all nodes join."""
BEGINNING = 90.0
"""Virtual seconds, joining included, over which the bytes of a beginning ring are counted."""
QUIET = 32
"""Ticks of one second over which upkeep is measured."""
LIMIT = 200
"""Ticks in which a ring must have repaired itself."""
FAILING = 20.0
"""Virtual seconds in which a tenth of the nodes die."""

ROUTES = "“… routed to the node with the nodeid numerically closest to that key, within ⌈log16 N⌉ hops” (ELF §2.3)."
DELIVERY = "“The overlay is self-organizing and self-repairing.” (SR3 §3.3)"
UPKEEP = (
    "“… bytes sent per node increase only linearly, with an exponential increase in the number of nodes. … "
    "each node pings to a limited set of nodes in the leaf set.” (SR3 §5.4, Fig. 12c)"
)


@dataclass
class Measured:
    nodes: int
    lookups: int
    build: float = 0.0
    """Seconds of processor time to join all nodes."""
    repair: float = 0.0
    route: float = 0.0
    wall: float = 0.0
    """Seconds by the clock, of the three together."""
    repair_ticks: int = 0
    bound: int = 0
    hops: dict[int, int] | None = None
    wrong: int = 0
    """Lookups that were lost, doubled, or went to another than the nearest node."""
    begin_bytes: float = 0.0
    """Per node, in the first ``BEGINNING`` seconds of the ring."""
    quiet_bytes: float = 0.0
    """Per node and second, with one tick a second."""
    sent: int = 0
    arrived: int = 0
    delays: list[float] | None = None
    astray: int = 0
    """Of those, how many went to another than the nearest node that was alive then."""
    mended: int = 0
    """Ticks until leaf sets and tables were right again."""

    @property
    def most(self) -> int:
        return max(self.hops or {0: 0})

    @property
    def over(self) -> float:
        """Share of routes that are longer than the bound."""
        hops = self.hops or {0: 1}
        return sum(count for number, count in hops.items() if number > self.bound) / sum(hops.values())

    @property
    def mean(self) -> float:
        hops = self.hops or {0: 1}
        return sum(number * count for number, count in hops.items()) / sum(hops.values())


def repaired(ring: RingWorld) -> bool:
    return ring.wrong_leaves() == 0 and ring.wrong_entries() == 0


def build(ring: RingWorld, nodes: int) -> None:
    """Joins in quick succession, through anyone who started at least half a second before."""
    ring.start()
    ring.world.run_for(0.5)
    started, behind = list(ring.ids), max(1, math.ceil(nodes / JOINING / 2))
    for _ in range(nodes - 1):
        contact = ring.world.random.choice(started[: max(1, len(started) - behind)])
        started.append(ring.start(contact))
        ring.world.run_for(JOINING / nodes)


def settle(ring: RingWorld) -> int:
    """Ticks until the ring is repaired, looked at every four. It has a limit, which counts as never."""
    for ticks in range(0, LIMIT, 4):
        if repaired(ring):
            return ticks
        ring.world.run_for(4 * ring.tick)
    return LIMIT


def ask(ring: RingWorld, lookups: int) -> None:
    chance = ring.world.random
    ids = list(ring.ids)
    for number in range(lookups):
        ring.lookup(chance.choice(ids), chance.getrandbits(128))
        if number % 100 == 99:
            ring.world.run_for(0.005)
    ring.world.run_for(1.0)


def fail(ring: RingWorld, found: Measured) -> None:
    """A tenth of the nodes die, one after the other, while the others go on asking."""
    chance, before = ring.world.random, ring.astray
    doomed = chance.sample(ring.ids, found.nodes // 10)
    spared = set(doomed)
    sources = [one for one in ring.ids if one not in spared]
    found.sent = 10 * len(doomed)
    for number in range(found.sent):
        if number % 10 == 5:
            ring.kill(doomed.pop())
        ring.lookup(chance.choice(sources), chance.getrandbits(128), payload=ring.world.now, receipt=True)
        ring.world.run_for(FAILING / found.sent)
    found.mended = settle(ring)
    ring.world.run_for(2 * ring.settings.retry_every * ring.tick)
    found.arrived = len(ring.arrived)
    found.delays = sorted(at - began for _, _, at, began in ring.arrived.values())
    found.astray = ring.astray - before


def measure(nodes: int, lookups: int, seed: int) -> Measured:
    found = Measured(nodes, lookups)
    ring = RingWorld(seed)
    clock, wall = time.process_time(), time.perf_counter()

    def lap(counts: bool = True) -> float:
        nonlocal clock, wall
        before, began, clock, wall = clock, wall, time.process_time(), time.perf_counter()
        found.wall += counts * (wall - began)
        return clock - before

    ring.network.sizes = wire_bytes
    build(ring, nodes)
    found.build = lap()
    found.repair_ticks = settle(ring)
    found.repair = lap()
    ring.world.run(BEGINNING)
    found.begin_bytes = ring.network.bytes.total() / nodes
    ring.network.sizes = None
    found.bound = ring.most_hops()
    lap(counts=False)
    ask(ring, lookups)
    found.route = lap()
    found.hops = {}
    found.wrong = lookups - len(ring.delivered)
    for places in ring.delivered.values():
        (at, key, hops), again = places[0], places[1:]
        found.hops[hops] = found.hops.get(hops, 0) + 1
        found.wrong += bool(again) or at != ring.nearest(key)
    ring.delivered.clear()
    ring.network.bytes.clear()
    ring.network.sizes = wire_bytes
    ring.world.run_for(QUIET * ring.tick)
    found.quiet_bytes = ring.network.bytes.total() / nodes / QUIET
    fail(ring, found)
    return found


def counted(axis: Axes, sizes: list[int]) -> None:
    """Labels a logarithmic axis of nodes."""
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.minorticks_off()
    axis.set_xlabel("nodes")


def grows_like_log(sizes: list[int], costs: list[float]) -> bool:
    """From the smallest ring to the largest, does the cost grow no more than the logarithm of the size does?"""
    return costs[-1] / costs[0] <= math.log(sizes[-1]) / math.log(sizes[0])


def draw(all_found: list[Measured], quick: bool) -> dict[str, bool]:
    sizes = [one.nodes for one in all_found]
    routes = all(one.over == 0 and one.wrong == 0 for one in all_found)
    longer = ", ".join(f"{one.over:.1%} at {one.nodes:,}" for one in all_found if one.over)
    within = ", ".join(f"{one.most} of {one.bound} at {one.nodes:,}" for one in all_found if not one.over)
    why = f"longest routes {within}"
    if longer:
        why += f";\nbut longer than that: {longer}, where a prefix has more nodes than half a leaf set"
    said = verdict(routes, f"{why}. {sum(one.wrong for one in all_found)} went to the wrong node.")
    with beside_paper("ring-routes", "How many hops does a route take?", ROUTES, said, quick) as (axis,):
        axis.semilogx(sizes, [one.bound for one in all_found], "k--", label="⌈log16 N⌉")
        axis.semilogx(sizes, [one.most for one in all_found], "o-", label="longest route")
        axis.semilogx(sizes, [one.mean for one in all_found], "s-", label="mean")
        counted(axis, sizes)
        axis.set_ylabel("hops")
        axis.set_ylim(bottom=0)

    delivery = all(one.arrived == one.sent and one.mended < LIMIT for one in all_found)
    why = ", ".join(f"{one.arrived:,} of {one.sent:,} at {one.nodes:,}" for one in all_found)
    said = verdict(delivery, f"delivered while a tenth of the nodes died: {why}; then repaired.")
    with beside_paper("ring-failures", "Do messages arrive while nodes fail?", DELIVERY, said, quick) as (axis,):
        for one in all_found:
            delays = one.delays or [0.0]
            shares = [(place + 1) / one.sent for place in range(len(delays))]
            axis.semilogx([max(delay, 1e-3) for delay in delays], shares, label=f"{one.nodes:,} nodes")
        axis.set_xlabel("seconds until the sender has the receipt (timeout 0.4 s, tick 1 s)")
        axis.set_ylabel("share of messages")
        axis.set_ylim(0, 1.02)

    quiet, begin = [one.quiet_bytes for one in all_found], [one.begin_bytes for one in all_found]
    upkeep = grows_like_log(sizes, quiet) and grows_like_log(sizes, begin)
    logs = math.log(sizes[-1]) / math.log(sizes[0])
    why = (
        f"{sizes[-1] / sizes[0]:.0f} times the nodes ({logs:.2f} times log N) cost {quiet[-1] / quiet[0]:.2f} times "
        f"the bytes at rest, {begin[-1] / begin[0]:.2f} times from the beginning on."
    )
    said = verdict(upkeep, why)
    with beside_paper("ring-upkeep", "What does keeping up the ring cost a node?", UPKEEP, said, quick) as (axis,):
        axis.semilogx(sizes, [one / 1e3 for one in begin], "s-", label=f"first {BEGINNING:.0f} s, joining included")
        axis.semilogx(sizes, [one * BEGINNING / 1e3 for one in quiet], "o-", label=f"{BEGINNING:.0f} s at rest")
        counted(axis, sizes)
        axis.set_ylabel("KB sent by a node")
        axis.set_ylim(0, 1.1 * BEGINNING * max(quiet) / 1e3)
    return {"routes_agree": routes, "delivery_agrees": delivery, "upkeep_agrees": upkeep}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--seed", type=int, default=1)
    options = made.parse_args()
    plan = [(100, 20_000), (300, 20_000), (1000, 20_000), (3000, 20_000), (5000, 100_000)]
    if options.quick:
        plan = [(100, 5_000), (300, 5_000), (1000, 10_000)]
    all_found = []
    for nodes, lookups in plan:
        with console.status(f"{nodes:,} nodes ..."):
            all_found.append(measure(nodes, lookups, options.seed))
    hops = table(
        f"simulated rings, 24 leaves, b = 4, one tick a second; seed {options.seed}",
        *("nodes", "hops: mean", "longest", "⌈log16 N⌉", "arrived while 10 % die", "astray", "median, worst delay"),
    )
    costs = table(
        "what they cost",
        *("nodes", "bytes/s at rest", f"KB in the first {BEGINNING:.0f} s", "repaired after joins, failures"),
        *("join, repair, lookups: processor time",),
    )
    result: dict[str, object] = {}
    for one in all_found:
        delays = one.delays or [0.0]
        seconds = one.build + one.repair + one.route
        hops.add_row(
            *(f"{one.nodes:,}", f"{one.mean:.2f}", str(one.most), str(one.bound)),
            *(f"{one.arrived:,} / {one.sent:,}", str(one.astray)),
            f"{median(delays) * 1e3:.1f} ms, {delays[-1]:.1f} s",
        )
        costs.add_row(
            *(f"{one.nodes:,}", f"{one.quiet_bytes:,.0f}", f"{one.begin_bytes / 1e3:.0f}"),
            f"{one.repair_ticks}, {one.mended} ticks",
            f"{one.build:.1f} + {one.repair:.1f} + {one.route:.1f} = {seconds:.1f} s",
        )
        result |= {
            f"hops_{one.nodes}": one.most,
            f"bound_{one.nodes}": one.bound,
            f"over_bound_{one.nodes}": one.over,
            f"delivered_{one.nodes}": one.arrived / one.sent,
            f"astray_{one.nodes}": one.astray,
            f"upkeep_bytes_{one.nodes}": one.quiet_bytes,
            f"cpu_seconds_{one.nodes}": seconds,
            f"wall_seconds_{one.nodes}": one.wall,
        }
    result |= draw(all_found, options.quick)
    console.print(hops)
    report(costs, result)


if __name__ == "__main__":
    main()
