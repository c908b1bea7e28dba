"""Branches of a recovery plan carried out in virtual time: requests, merging and sending, chunk by chunk.

A node that is asked for a branch asks for the branches below it, merges a chunk as soon as each of them has brought its
share, and sends it on while the next is merged. Its core does one thing at a time, its links are shared by everything
that goes over them. So a plan takes the time that its busiest core or link needs, and the time to fill it once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

from holdfast.recovery.choice import Speeds
from holdfast.recovery.structures import Branch
from holdfast.safety.shards import PieceName, Version
from simulator.links import Links, Speed
from simulator.world import World


@dataclass(frozen=True)
class Costs:
    """Bytes a second on one core, seconds, bytes."""

    merge: float = Speeds.merge
    """Several streams into one, on the way."""
    build: float = Speeds.build
    """A merged stream, or a checkpoint, into a table with its index."""
    loose: float = Speeds.loose
    """Pieces that come unmerged, likewise."""
    cut: float = 600e6
    """A slice into pieces."""
    latency: float = 0.0005
    """One way."""
    request: float = 0.002
    """What a node does before the first byte leaves."""
    chunk: int = Speeds.chunk
    most_chunks: int = 32
    """A stream is cut into no more than that: finer changes nothing but the time a run takes."""


class Sink(Protocol):
    """Where a stream ends: another stream, or the replacing node."""

    def chunk(self, stream: Stream) -> None:
        """One more chunk is here."""

    def failed(self, stream: Stream, lost: tuple[str, ...]) -> None:
        """No more comes: these could not be reached."""


@dataclass
class Fabric:
    """What nodes are made of, as far as streams need to know: links, one core each, and pieces in memory."""

    world: World
    costs: Costs
    speed: Speed
    held: dict[str, dict[tuple[PieceName, Version], int]] = field(default_factory=dict)
    """Live node → what it holds, and how large it is."""
    streams: defaultdict[str, dict[Stream, None]] = field(default_factory=lambda: defaultdict(dict))
    """Node → the streams that leave it."""

    def __post_init__(self) -> None:
        self.links = Links(self.world, self.speed)
        self._free: defaultdict[str, float] = defaultdict(float)

    def compute(self, node: str, seconds: float, then: Callable[[], None]) -> None:
        """On the node's core, after everything that waits for it already."""
        self._free[node] = max(self._free[node], self.world.now) + seconds
        self.world.at(self._free[node] - self.world.now, then)

    def kill(self, node: str) -> None:
        """Whoever waits for it sees its connections break."""
        del self.held[node]
        self.links.die(node)
        for stream in list(self.streams.pop(node, ())):
            stream.cancel()
            self.world.at(self.costs.latency, stream.sink.failed, stream, (node,))
        for others in list(self.streams.values()):
            for stream in [one for one in others if one.to == node]:
                stream.cancel()


class Stream:
    """One branch on its way to whoever pulls it."""

    def __init__(
        self, fabric: Fabric, branch: Branch, versions: Mapping[int, Version], sizes: Sizes, to: str, sink: Sink
    ) -> None:
        self.branch = branch
        self.to = to
        self.sink = sink
        self.nbytes = sum(sizes[piece] for piece in branch.all_pieces())
        self.chunks = max(1, min(fabric.costs.most_chunks, ceil(self.nbytes / fabric.costs.chunk)))
        self.sent = 0
        self.over = False
        self.lacking: set[PieceName] = set()
        """Pieces that the node turned out not to have."""
        self._fabric = fabric
        self._versions = versions
        self._sizes = sizes
        self._below: list[Stream] = []
        self._ready = 0
        self._merging = self._sending = False

    @property
    def each(self) -> float:
        """Bytes of a chunk."""
        return self.nbytes / self.chunks

    @property
    def share(self) -> float:
        """How much of it has arrived."""
        return self.sent / self.chunks

    def missing(self) -> set[PieceName]:
        """Of this stream and all below it: what will not come."""
        return self.lacking.union(*(one.missing() for one in self._below))

    def start(self) -> None:
        self._fabric.world.at(self._fabric.costs.latency, self._asked)

    def cancel(self) -> None:
        self.over = True
        self._fabric.streams[self.branch.at].pop(self, None)
        for one in self._below:
            one.cancel()

    # ---------------------------------------------------------------------------------------------- what happens to it

    def _asked(self) -> None:
        if self.over:
            return
        fabric, at = self._fabric, self.branch.at
        if at not in fabric.held:
            self.cancel()
            fabric.world.at(fabric.costs.latency, self.sink.failed, self, (at,))
            return
        fabric.streams[at][self] = None
        held = fabric.held[at]
        self.lacking = {piece for piece in self.branch.pieces if (piece, self._versions[piece.slice]) not in held}
        self._below = [Stream(fabric, branch, self._versions, self._sizes, at, self) for branch in self.branch.branches]
        for one in self._below:
            one.start()
        fabric.compute(at, fabric.costs.request, self._work)

    def chunk(self, stream: Stream) -> None:
        self._work()

    def failed(self, stream: Stream, lost: tuple[str, ...]) -> None:
        if not self.over:
            self.cancel()
            self._fabric.world.at(self._fabric.costs.latency, self.sink.failed, self, lost)

    def _work(self) -> None:
        """Merges the next chunk, if it is there, and what was merged does not pile up."""
        if self.over or self._merging or self._ready == self.chunks or self._ready - self.sent > 2:
            return
        if all(one.share >= (self._ready + 1) / self.chunks for one in self._below):
            self._merging = True
            seconds = self.each / self._fabric.costs.merge if self._below else 0.0
            self._fabric.compute(self.branch.at, seconds, self._merged)

    def _merged(self) -> None:
        self._merging = False
        self._ready += 1
        self._send()
        self._work()

    def _send(self) -> None:
        if self.over or self._sending or self.sent == self._ready:
            return
        self._sending = True
        if self.branch.at == self.to:
            self._fabric.world.at(0.0, self._arrived)
        else:
            self._fabric.links.transfer(self.branch.at, self.to, self.each, self._arrived)

    def _arrived(self) -> None:
        self._sending = False
        if self.over:
            return
        self.sent += 1
        self.sink.chunk(self)
        if self.sent == self.chunks:
            self._fabric.streams[self.branch.at].pop(self, None)
        else:
            self._send()
            self._work()


Sizes = Mapping[PieceName, int]
