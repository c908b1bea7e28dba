"""The replacing node's machine: from "these slices are lost" to "here they are", or to "the store must help".

It asks who holds what, unless it was told enough to begin with; takes for every slice the newest version of which each
piece has a live holder, plans, pulls. When a holder is lost on the way only what is still missing is planned anew; what
has come is never asked for again. If a version cannot be completed any more, what came of it is dropped and the newest
that can takes its place: pieces of two versions never meet. Every failure takes a holder or a claim away, so it always
ends.

Events in, instructions out; no clock. Its shell asks, pulls and loads, and says when waiting for answers is over.

It is long because what it hears and what it asks for, a third of it, belong to nobody else.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod

from holdfast.invariants import Impossible
from holdfast.recovery.choice import Speeds, settle
from holdfast.recovery.policies import Auto, FromStore, Star, Structure
from holdfast.recovery.structures import Branch, Sources
from holdfast.safety.shards import Cut, Held, PieceName, Version, choose

# ---------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class Answered:
    """What a container holds of the slices it was asked about."""

    peer: str
    held: tuple[Held, ...]
    load: float = 0.0
    """Bytes that it has to send already."""
    upload: float = 0.0
    """Bytes a second, 0 if it does not know."""
    merge: float = 0.0
    """Likewise."""


@dataclass(frozen=True)
class Begin:
    """Once, first. If what is known by now makes a version whole, nobody is asked for more."""

    known: tuple[Answered, ...] = ()


@dataclass(frozen=True)
class Waited:
    """Whoever has not answered by now is counted as lost, until it answers."""


@dataclass(frozen=True)
class Lost:
    """A container is gone, or cannot be reached."""

    peer: str


@dataclass(frozen=True)
class Came:
    """These pieces are here, whole and checked, out of that pull."""

    pull: int
    pieces: tuple[PieceName, ...]


@dataclass(frozen=True)
class Ended:
    """A pull is over: nothing more comes. What has not come of it, its giver does not have."""

    pull: int


@dataclass(frozen=True)
class Failed:
    """A pull broke. ``lost`` are those who could not be reached; without names it is the one that was pulled."""

    pull: int
    lost: tuple[str, ...] = ()
    why: str = ""


Event = Begin | Answered | Waited | Lost | Came | Ended | Failed

# ---------------------------------------------------------------------------------------------------- instructions


@dataclass(frozen=True)
class Ask:
    """Ask a container what it holds of these slices; itself too."""

    peer: str
    slices: tuple[int, ...]


@dataclass(frozen=True)
class Pull:
    """Pull a branch; each slice in it at its version. A branch at the replacing node itself is not sent, only read."""

    number: int
    branch: Branch
    versions: tuple[tuple[int, Version], ...]


@dataclass(frozen=True)
class Keep:
    """Load these pieces of what has come. What is not kept is thrown away."""

    pull: int
    pieces: tuple[PieceName, ...]


@dataclass(frozen=True)
class Cancel:
    """Nothing of this pull is wanted any more."""

    pull: int


@dataclass(frozen=True)
class Drop:
    """Forget everything kept of a slice: that version cannot be completed, another one follows."""

    slice: int
    version: Version


@dataclass(frozen=True)
class Done:
    """All pieces of one version have been kept."""

    slice: int
    version: Version


@dataclass(frozen=True)
class Beyond:
    """The ring cannot bring it back, or not as quickly: store and log must. What was kept of it is void."""

    slice: int
    reason: str


Instruction = Ask | Pull | Keep | Cancel | Drop | Done | Beyond

# --------------------------------------------------------------------------------------------------------- machine


@dataclass
class Slice:
    """One lost slice on its way back."""

    number: int
    pieces: tuple[PieceName, ...]
    version: Version | None = None
    """Chosen, and being gathered."""
    got: set[PieceName] = field(default_factory=set)
    over: bool = False

    @property
    def missing(self) -> set[PieceName]:
        return set(self.pieces) - self.got


class Gathering:
    """``asked``: each lost slice and who may hold pieces of it, from whatever leaf sets the shell knows."""

    def __init__(
        self,
        here: str,
        cut: Cut,
        asked: Mapping[int, Collection[str]],
        policy: Structure | Auto,
        speeds: Speeds | None = None,
        replacing: Collection[str] = (),
    ) -> None:
        self.here = here
        self.policy = policy
        self.speeds = speeds
        self.replacing = frozenset(replacing) - {here}
        self.slices = {number: Slice(number, cut.pieces(number)) for number in sorted(asked)}
        self.structure: Structure | FromStore | None = None
        """What was chosen, once it is."""
        self._may_hold = {number: frozenset(peers) for number, peers in asked.items()}
        self._asked = False
        self._waiting: set[str] = set()
        self._lost: set[str] = set()
        self._answers: dict[str, Answered] = {}
        self._pulls: dict[int, Pull] = {}
        self._queue: deque[Branch] = deque()
        self._made = 0
        self._out: list[Instruction] = []

    @property
    def over(self) -> bool:
        return all(one.over for one in self.slices.values())

    def handle(self, event: Event) -> list[Instruction]:
        self._out = []
        self._on(event)
        return self._out

    @singledispatchmethod
    def _on(self, event: object) -> None:
        raise Impossible(f"an unknown event: {event}")

    @_on.register
    def _(self, event: Begin) -> None:
        self._answers = {answer.peer: answer for answer in event.known}
        if not event.known:
            self._ask()
        self._plan_if_known()

    @_on.register
    def _(self, event: Answered) -> None:
        self._waiting.discard(event.peer)
        self._lost.discard(event.peer)
        self._answers[event.peer] = event
        self._plan_if_known()

    @_on.register
    def _(self, event: Waited) -> None:
        self._waiting.clear()
        self._plan_if_known()

    @_on.register
    def _(self, event: Lost) -> None:
        self._lose([event.peer])
        self._plan_if_known()

    @_on.register
    def _(self, event: Came) -> None:
        pull = self._pulls.get(event.pull)
        if pull is None:
            return  # cancelled meanwhile
        kept = tuple(piece for piece in event.pieces if self._wants(pull, piece))
        if not kept:
            return
        self._out.append(Keep(event.pull, kept))
        for piece in kept:
            self.slices[piece.slice].got.add(piece)
        for number in sorted({piece.slice for piece in kept}):
            one = self.slices[number]
            if not one.missing:
                if one.version is None:
                    raise Impossible("pieces are kept of a chosen version only")
                one.over = True
                self._out.append(Done(number, one.version))

    @_on.register
    def _(self, event: Ended) -> None:
        pull = self._pulls.pop(event.pull, None)
        if pull is None:
            return
        lacking = [
            (branch.at, {piece for piece in branch.pieces if self._wants(pull, piece)}) for branch in pull.branch.walk()
        ]
        if not any(pieces for _, pieces in lacking):
            self._pull()  # as it should be, and the plan is still good
            return
        for peer, pieces in lacking:
            self._void(peer, pieces)
        self._plan()

    @_on.register
    def _(self, event: Failed) -> None:
        pull = self._pulls.pop(event.pull, None)
        if pull is not None:
            # Somebody in the branch is to blame, or the same would be pulled again and again.
            named = not pull.branch.nodes().isdisjoint(event.lost)
            self._lose(event.lost if named else (*event.lost, pull.branch.at))
            self._plan()

    # ------------------------------------------------------------------------------------------------------ knowledge

    def _wants(self, pull: Pull, piece: PieceName) -> bool:
        one = self.slices[piece.slice]
        return not one.over and piece not in one.got and (piece.slice, one.version) in pull.versions

    def _void(self, peer: str, pieces: Collection[PieceName]) -> None:
        """It said that it had them, and has not."""
        answer = self._answers.get(peer)
        if answer is not None and pieces:
            left = tuple(held for held in answer.held if held.piece not in pieces)
            self._answers[peer] = replace(answer, held=left)

    def _lose(self, peers: Iterable[str]) -> None:
        for peer in peers:
            self._lost.add(peer)
            self._waiting.discard(peer)
            self._answers.pop(peer, None)
        for number, pull in list(self._pulls.items()):
            if not self._lost.isdisjoint(pull.branch.nodes()):
                del self._pulls[number]
                self._out.append(Cancel(number))

    # ------------------------------------------------------------------------------------------------------- planning

    def _ask(self) -> None:
        self._asked = True
        self._waiting = {peer for peers in self._may_hold.values() for peer in peers} - self._lost
        for peer in sorted(self._waiting):
            slices = tuple(number for number, peers in sorted(self._may_hold.items()) if peer in peers)
            self._out.append(Ask(peer, slices))

    def _plan_if_known(self) -> None:
        if not self._waiting:
            self._plan()

    def _plan(self) -> None:
        """Brings what is under way in line with what is known."""
        self._choose_versions()
        self._cancel_useless()
        under_way = {
            piece for pull in self._pulls.values() for piece in pull.branch.all_pieces() if self._wants(pull, piece)
        }
        chosen = [one for one in self.slices.values() if not one.over and one.version is not None]
        wanted = {piece for one in chosen for piece in one.missing} - under_way
        self._queue.clear()
        if wanted:
            self._queue.extend(self._planned(wanted))
        self._pull()

    def _choose_versions(self) -> None:
        claims = self._claims()
        for one in self.slices.values():
            if one.over or (one.version is not None and self._can_complete(one, claims[one.number])):
                continue
            version = choose(one.pieces, claims[one.number])
            if one.version is not None:
                self._out.append(Drop(one.number, one.version))
                one.got.clear()
            one.version = version
            if version is None and not self._asked:
                self._ask()  # what was known at the beginning need not be all there is
            if version is None and not self._waiting:
                self._beyond(one, "No version is whole among the containers that answered.")

    def _claims(self) -> defaultdict[int, defaultdict[str, list[Held]]]:
        """Slice → container → what it says it holds of it."""
        found: defaultdict[int, defaultdict[str, list[Held]]] = defaultdict(lambda: defaultdict(list))
        for peer, answer in self._answers.items():
            for held in answer.held:
                found[held.piece.slice][peer].append(held)
        return found

    def _can_complete(self, one: Slice, claims: Mapping[str, Iterable[Held]]) -> bool:
        there = {held.piece for answer in claims.values() for held in answer if held.version == one.version}
        return one.missing <= there

    def _beyond(self, one: Slice, reason: str) -> None:
        one.over = True
        self._out.append(Beyond(one.number, reason))

    def _cancel_useless(self) -> None:
        for number, pull in list(self._pulls.items()):
            if not any(self._wants(pull, piece) for piece in pull.branch.all_pieces()):
                del self._pulls[number]
                self._out.append(Cancel(number))

    def _planned(self, wanted: Collection[PieceName]) -> list[Branch]:
        holders: dict[PieceName, list[str]] = {piece: [] for piece in sorted(wanted)}
        nbytes: dict[PieceName, int] = {}
        for peer, answer in sorted(self._answers.items()):
            for held in answer.held:
                if held.piece in holders and held.version == self.slices[held.piece.slice].version:
                    holders[held.piece].append(peer)
                    nbytes[held.piece] = held.nbytes
        sources = Sources(
            holders,
            nbytes,
            _alike({peer: answer.upload for peer, answer in self._answers.items() if answer.upload}),
            {peer: answer.load for peer, answer in self._answers.items()},
            self.here,
            self.replacing,
            {peer: answer.merge for peer, answer in self._answers.items() if answer.merge},
        )
        if self.structure is None:
            self.structure = settle(self.policy, sources, self.speeds, 1 + len(self.replacing))
        if isinstance(self.structure, FromStore):
            for one in self.slices.values():
                if not one.over:
                    self._beyond(one, "The store is quicker.")
            return []
        # Those who plan apart shall not all begin with the same provider.
        return sorted(
            self.structure.plan(sources),
            key=lambda branch: (branch.at != self.here, sources.lot(branch.at)),
        )

    def _pull(self) -> None:
        limit = self.structure.fanout if isinstance(self.structure, Star) else None
        while self._queue:
            remote = sum(pull.branch.at != self.here for pull in self._pulls.values())
            if limit is not None and remote >= limit:
                return
            branch = self._queue.popleft()
            self._made += 1
            numbers = sorted({piece.slice for piece in branch.all_pieces()})
            versions = tuple((number, version) for number in numbers if (version := self.slices[number].version))
            self._pulls[self._made] = Pull(self._made, branch, versions)
            self._out.append(self._pulls[self._made])


def _alike(uploads: Mapping[str, float]) -> dict[str, float]:
    """What is measured differs from one time to the next: half as fast as the best is as good as the best."""
    best = max(uploads.values(), default=0.0)
    return {peer: best if rate >= best / 2 else rate for peer, rate in uploads.items()}
