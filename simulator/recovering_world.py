"""A world of containers that hold pieces of each other's slices: saving, losing, and the shipped machine that gathers.

The ring's own protocols are not played here (``ring_world`` does that): leaf sets are what a repaired ring has. What is
played is everything after a loss is known, with the time it takes: who is asked, who is pulled, who dies meanwhile.
Recovery from a remote store, the baseline, is one more node that holds everything, behind one link.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from holdfast.ids import distance, id_of
from holdfast.invariants import Impossible
from holdfast.recovery.choice import Speeds
from holdfast.recovery.gathering import (
    Answered,
    Ask,
    Begin,
    Beyond,
    Came,
    Cancel,
    Done,
    Drop,
    Ended,
    Event,
    Failed,
    Gathering,
    Instruction,
    Keep,
    Lost,
    Pull,
    Waited,
)
from holdfast.recovery.policies import Auto, Star, Structure
from holdfast.safety.shards import Cut, Held, PieceName, Version, holders, key_of
from simulator.links import Speed
from simulator.streams import Costs, Fabric, Stream
from simulator.world import World

STORE = "store"
PATIENCE = 2.0
"""Seconds after which whoever has not answered is done without."""
GIGABIT = Speed(125e6, 125e6)


class RecoveringWorld:
    """Containers ``c0``, ``c1``, … on ``hosts`` machines; none, if others come and go in a ``world`` that there is."""

    def __init__(
        self,
        seed: int,
        nodes: int,
        hosts: int = 0,
        speed: Speed = GIGABIT,
        costs: Costs | None = None,
        leaves: int = 24,
        trace: bool = False,
        make: Callable[..., Gathering] = Gathering,
        world: World | None = None,
    ) -> None:
        self.world = world or World(seed, trace)
        self.fabric = Fabric(self.world, costs or Costs(), speed)
        self.hosts: dict[str, str] = {}
        self.ids: dict[int, str] = {}
        self.leaves = leaves
        self.make = make
        self.mute: set[str] = set()
        """Alive, but their answers get lost."""
        self.gatherers: list[Gatherer] = []
        self._order: list[int] = []
        for number in range(nodes):
            self.add(f"c{number}", f"h{number % (hosts or nodes)}")

    def add(self, name: str, host: str) -> None:
        self.hosts[name] = host
        self.ids[id_of(name)] = name
        insort(self._order, id_of(name))
        self.fabric.held[name] = {}

    def repair(self, name: str) -> None:
        """A dead one is nobody's leaf any more."""
        del self.hosts[name], self.ids[id_of(name)], self._order[bisect_left(self._order, id_of(name))]

    @property
    def held(self) -> dict[str, dict[tuple[PieceName, Version], int]]:
        """Live container → its pieces."""
        return self.fabric.held

    def leaf(self, key: int) -> dict[str, str]:
        """The leaf set of a key, with hosts, the nearest first; dead ones too, as long as nobody has repaired it."""
        count, half = len(self._order), (self.leaves + 1) // 2
        place = bisect_left(self._order, key)
        near = {self._order[(place + step) % count] for step in range(-half, half)}
        return {self.ids[one]: self.hosts[self.ids[one]] for one in sorted(near, key=lambda one: distance(one, key))}

    def hears(self, here: str, peer: str) -> bool:
        """Whether answers get from the one to the other, which lives."""
        return peer not in self.mute

    def kill(self, name: str) -> None:
        self.world.note(name, "dies")
        self.fabric.kill(name)
        for gatherer in self.gatherers:
            gatherer.heard_of_loss(name)

    # ------------------------------------------------------------------------------------ saving

    def placed(
        self, job: str, slice_: int, owner: str, cut: Cut, kept: Mapping[PieceName, Collection[str]] | None = None
    ) -> dict[PieceName, tuple[str, ...]]:
        """Where its pieces shall be, as its owner sees it."""
        leaves = {name: host for name, host in self.leaf(key_of(job, slice_)).items() if name in self.held}
        if owner in self.hosts:
            leaves.setdefault(owner, self.hosts[owner])
        load = {name: len(self.held[name]) for name in leaves if name in self.held}
        return holders(cut.pieces(slice_), leaves, owner, cut.n, load, kept)

    def put(self, where: Mapping[PieceName, Iterable[str]], version: Version, nbytes: int) -> None:
        """At once; ``nbytes`` are those of all these pieces together."""
        for piece, names in where.items():
            for name in names:
                self.held[name][piece, version] = nbytes // len(where)

    def save(self, owner: str, where: Mapping[PieceName, Iterable[str]], nbytes: int, done: Callable[[], None]) -> None:
        """With the time it takes: cut into pieces, then sent one after the other, as SR3 measures it (§5.2)."""
        to = [name for names in where.values() for name in names]
        each, costs, fabric = nbytes / len(where), self.fabric.costs, self.fabric

        def next_one() -> None:
            if not to:
                done()
                return
            name = to.pop(0)
            fabric.compute(name, costs.request, lambda: fabric.links.transfer(owner, name, each, answered))

        def answered() -> None:
            self.world.at(2 * costs.latency, next_one)

        fabric.compute(owner, nbytes / costs.cut if len(where) > 1 else 0.0, next_one)

    def stock(self, slices: Iterable[int], cut: Cut, version: Version, nbytes: int, speed: Speed) -> None:
        """A store with a checkpoint of these slices, each of ``nbytes``."""
        self.fabric.links.speeds[STORE] = speed
        self.held.setdefault(STORE, {})
        for number in slices:
            self.put(dict.fromkeys(cut.pieces(number), (STORE,)), version, nbytes)

    # ------------------------------------------------------------------------------------ recovering

    def recover(
        self,
        here: str,
        slices: Iterable[int],
        cut: Cut,
        policy: Structure | Auto,
        job: str = "job",
        speeds: Speeds | None = None,
        replacing: Collection[str] = (),
    ) -> Gatherer:
        """Begins at once; let time pass to see what comes of it."""
        asked = {number: {*self.leaf(key_of(job, number)), here} for number in slices}
        return self._begin(here, self.make(here, cut, asked, policy, speeds, replacing))

    def restore(self, here: str, slices: Iterable[int], cut: Cut) -> Gatherer:
        """The baseline: everything from the store, in one stream."""
        return self._begin(here, Gathering(here, cut, dict.fromkeys(slices, (STORE,)), Star(1)))

    def _begin(self, here: str, machine: Gathering) -> Gatherer:
        gatherer = Gatherer(self, here, machine)
        self.gatherers.append(gatherer)
        gatherer.handle(Begin())
        self.world.at(PATIENCE, gatherer.handle, Waited())
        return gatherer


class Gatherer:
    """The machine's shell in this world. It also keeps the books that the promises are checked by."""

    def __init__(self, world: RecoveringWorld, here: str, machine: Gathering) -> None:
        self.here = here
        self.machine = machine
        self.began = world.world.now
        self.ended: float | None = None
        self.fates: dict[int, Version | str] = {}
        """Slice → the version that is here, or why none is."""
        self.kept: defaultdict[int, list[tuple[PieceName, Version]]] = defaultdict(list)
        self.wrong: list[str] = []
        """Promises that were broken."""
        self.pulled = 0
        self.then: Callable[[Gatherer], None] = lambda _: None
        """Called when it has ended."""
        self._ring = world
        self._pulls: dict[int, Pull] = {}
        self._streams: dict[Stream, int] = {}
        self._built: dict[int, int] = {}
        self._due: dict[int, list[tuple[float, PieceName]]] = {}
        """Pull → by which share of the stream each of its pieces is complete."""

    @property
    def alive(self) -> bool:
        return self.here in self._ring.held

    @property
    def seconds(self) -> float:
        if self.ended is None:
            raise Impossible(f"it has not ended: {self.fates}")
        return self.ended - self.began

    def handle(self, event: Event) -> None:
        if not self.alive or self.ended is not None:
            return
        if self._ring.world.tracing:
            self._ring.world.note(self.here, f"{event}")
        for one in self.machine.handle(event):
            if self._ring.world.tracing:
                self._ring.world.note(self.here, f"  {one}")
            self._perform(one)
        if self.machine.over:
            self.ended = self._ring.world.now
            self.then(self)

    def heard_of_loss(self, name: str) -> None:
        """The ring tells of losses among neighbours, after a while."""
        self._ring.world.at(0.5 + self._ring.world.random.random(), self.handle, Lost(name))

    # ------------------------------------------------------------------------------------ instructions

    def _perform(self, one: Instruction) -> None:
        match one:
            case Ask(peer, slices):
                self._ring.world.at(self._ring.fabric.costs.latency, self._asked, peer, slices)
            case Pull():
                self._pull(one)
            case Keep(pull, pieces):
                for piece in pieces:
                    self._keep(piece, dict(self._pulls[pull].versions)[piece.slice])
            case Cancel(number):
                for stream in [stream for stream, pull in self._streams.items() if pull == number]:
                    stream.cancel()
                    del self._streams[stream]
            case Drop(slice_, _):
                self.kept[slice_].clear()
            case Done(slice_, version):
                self._done(slice_, version)
            case Beyond(slice_, reason):
                self._end(slice_, reason)

    def _asked(self, peer: str, slices: tuple[int, ...]) -> None:
        """The question has arrived."""
        back, held = self._ring.fabric.costs.latency, self._ring.held.get(peer)
        if held is None:
            self._ring.world.at(back, self.handle, Lost(peer))
        elif self._ring.hears(self.here, peer):
            found = tuple(
                Held(piece, version, size) for (piece, version), size in held.items() if piece.slice in slices
            )
            speed = self._ring.fabric.links.speeds.get(peer, self._ring.fabric.speed)
            self._ring.world.at(back, self.handle, Answered(peer, found, upload=speed.up))

    def _pull(self, pull: Pull) -> None:
        self.pulled += 1
        versions, pieces = dict(pull.versions), sorted(pull.branch.all_pieces())
        for piece in pieces:
            if (piece, versions[piece.slice]) in self.kept[piece.slice]:
                self.wrong.append(f"{self.here} asks again for {piece} of {versions[piece.slice]}.")
        sizes = {
            piece: self._ring.held.get(branch.at, {}).get((piece, versions[piece.slice]), 0)
            for branch in pull.branch.walk()
            for piece in branch.pieces
        }
        total, sofar = sum(sizes.values()) or 1, 0
        self._pulls[pull.number], self._built[pull.number], self._due[pull.number] = pull, 0, []
        for piece in pieces:
            sofar += sizes[piece]
            self._due[pull.number].append((sofar / total, piece))
        stream = Stream(self._ring.fabric, pull.branch, versions, sizes, self.here, self)
        self._streams[stream] = pull.number
        stream.start()

    # ------------------------------------------------------------------------------------ what streams bring

    def chunk(self, stream: Stream) -> None:
        """It has arrived; before it counts it must be built into tables here."""
        costs = self._ring.fabric.costs
        speed = costs.build if stream.branch.branches or stream.branch.at == STORE else costs.loose
        self._ring.fabric.compute(self.here, stream.each / speed, lambda: self._chunk_built(stream))

    def failed(self, stream: Stream, lost: tuple[str, ...]) -> None:
        number = self._streams.pop(stream, None)
        if number is not None:
            self.handle(Failed(number, lost))

    def _chunk_built(self, stream: Stream) -> None:
        number = self._streams.get(stream)
        if number is None:
            return
        before = self._built[number] / stream.chunks
        self._built[number] += 1
        after, missing = self._built[number] / stream.chunks, stream.missing()
        come = [piece for share, piece in self._due[number] if before < share <= after + 1e-9 and piece not in missing]
        self.handle(Came(number, tuple(come)))
        if self._built[number] == stream.chunks:
            self._streams.pop(stream, None)
            self.handle(Ended(number))

    # ------------------------------------------------------------------------------------ promises

    def _keep(self, piece: PieceName, version: Version) -> None:
        for other, its in self.kept[piece.slice]:
            if other == piece or its != version:
                self.wrong.append(f"{self.here} has {other} of {its} and takes {piece} of {version}.")
        self.kept[piece.slice].append((piece, version))

    def _done(self, slice_: int, version: Version) -> None:
        whole = {(piece, version) for piece in self.machine.slices[slice_].pieces}
        if set(self.kept[slice_]) != whole:
            self.wrong.append(
                f"{self.here} calls slice {slice_} done at {version} with {len(self.kept[slice_])} pieces."
            )
        self._end(slice_, version)

    def _end(self, slice_: int, fate: Version | str) -> None:
        if slice_ in self.fates:
            self.wrong.append(f"{self.here} ends slice {slice_} twice: {self.fates[slice_]}, {fate}.")
        self.fates[slice_] = fate
