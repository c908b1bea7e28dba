"""One simulated recovery or saving, fed with speeds that are measured here on real rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from common import median

from holdfast.ids import distance, id_of
from holdfast.operators.aggregate import AggregateOperator, AggregateSpec, Column, StageSpec
from holdfast.recovery.choice import Speeds
from holdfast.recovery.policies import Auto, Structure
from holdfast.safety.shards import Cut, PieceName, Version, bounds
from holdfast.state import copies, merging
from simulator.links import Speed
from simulator.recovering_world import GIGABIT, STORE, RecoveringWorld
from simulator.streams import Costs

MB = 1 << 20
LIMITED = Speed(up=12.5e6, down=125e6)
"""100 Mb/s up, as the paper has it for Figure 8b."""
NODES = 50
"""The paper's virtual machines."""
VERSION = Version(1)
EIGHT = Cut(8, 2)
LOST = "c0"


def measured(rows: int, rounds: int = 5) -> Costs:
    """What one core does with the rows of a running count and sum by a number, in bytes a second.

    Processor time, so that neighbours do not count; tables that fit a cache are quicker, so ``rows`` matters. What
    Flight does to send and receive them is not in it.
    """
    stage = StageSpec(
        (Column("k", "bigint"),), (AggregateSpec("n", "count", None, None), AggregateSpec("s", "sum", "v0", "bigint"))
    )
    operator = AggregateOperator(stage)
    chance = np.random.default_rng(1)
    columns = {"_h": chance.integers(-(2**63), 2**63 - 1, rows), "k0": np.arange(rows), "v0": np.arange(rows)}
    state = operator.new_slice()
    state.apply(1, operator.decode(pa.record_batch({name: pa.array(values) for name, values in columns.items()})))
    state.release(1)
    copy = state.delta(0, 1, 0, rows)
    header, plain = copies.header_of(copy), copy.replace_schema_metadata(None)
    pieces = [piece for _, piece in merging.cut(plain, bounds(8))]

    def build(chunks: list[pa.RecordBatch]) -> None:
        assembly = copies.Assembly(operator.layout, 1, header.rows, header.purged_at)
        for chunk in chunks:
            assembly.add(chunk)
        assembly.loader().finish()

    def speed(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(rounds):
            began = time.process_time()
            work()
            seconds.append(time.process_time() - began)
        return copy.nbytes / median(seconds)

    loose = [chunk for piece in pieces for chunk in merging.chunks(piece)]
    return Costs(
        merge=speed(lambda: list(merging.merged([merging.chunks(piece) for piece in pieces]))),
        build=speed(lambda: build(list(merging.chunks(plain)))),
        loose=speed(lambda: build(loose)),
        cut=speed(lambda: merging.cut(plain, bounds(8))),
        most_chunks=256,
    )


def speeds_of(costs: Costs, speed: Speed) -> Speeds:
    """What ``Auto`` would have measured."""
    latency = 2 * costs.latency + costs.request
    return Speeds(speed.up, speed.down, costs.merge, costs.build, costs.loose, latency, costs.chunk, store=speed.up)


@dataclass(frozen=True)
class Loss:
    """A container with ``nbytes`` of state in ``slices`` slices is lost; ``heirs`` nodes replace it."""

    nbytes: int
    heirs: int = 3
    slices: int = 12
    cut: Cut = EIGHT
    speed: Speed = GIGABIT
    removed: int = 0
    """So many pieces are gone from one of their holders, who says that it has them."""
    seed: int = 1

    def seconds(self, policy: Structure | Auto | None, costs: Costs) -> float:
        """Until the last heir has its share; without a policy from a store behind one link of the same speed."""
        ring = RecoveringWorld(self.seed, NODES, speed=self.speed, costs=costs)
        share = self.nbytes // self.slices
        ring.stock(range(self.slices), self.cut, VERSION, share, self.speed)
        where: dict[PieceName, tuple[str, ...]] = {}
        for number in range(self.slices):
            placed = ring.placed("job", number, LOST, self.cut)
            ring.put(placed, VERSION, share)
            where |= placed
        ring.kill(LOST)
        lost = id_of(LOST)
        near = sorted((one for one in ring.held if one != STORE), key=lambda one: distance(id_of(one), lost))
        heirs = near[: self.heirs]
        shares = {heir: range(self.slices)[place :: self.heirs] for place, heir in enumerate(heirs)}
        known = speeds_of(costs, self.speed)
        gatherers = [
            ring.recover(heir, mine, self.cut, policy, speeds=known, replacing=heirs)
            if policy
            else ring.restore(heir, mine, self.cut)
            for heir, mine in shares.items()
        ]
        # After the answers were given, before anything is pulled: they turn out to be wrong.
        ring.world.run_for(1.5 * costs.latency)
        for piece in ring.world.random.sample(sorted(where), self.removed):
            del ring.held[ring.world.random.choice(where[piece])][piece, VERSION]
        ring.world.run_for(1e6)
        assert all(fate == VERSION for one in gatherers for fate in one.fates.values()), [
            one.fates for one in gatherers
        ]
        return max(one.seconds for one in gatherers)


def saving(nbytes: int, costs: Costs, owners: int, cut: Cut | None) -> float:
    """Seconds until the last of ``owners`` has saved ``nbytes``: in pieces, or without a cut to the store."""
    ring = RecoveringWorld(1, NODES, costs=costs)
    ring.stock([], Cut(1, 1), VERSION, 0, GIGABIT)
    ended: list[float] = []
    for number in range(owners):
        owner = f"c{number}"
        whole = {PieceName(number, 0): (STORE,)}
        where = ring.placed("job", number, owner, cut) if cut else whole
        ring.save(owner, where, nbytes, lambda: ended.append(ring.world.now))
    ring.world.run_for(1e6)
    assert len(ended) == owners
    return max(ended)
