"""Carries moves out (ChronoStream §IV): copy, rebuild, dual mode, the switch between two epochs.

What a move is, and how far it has come, is in ``moves``. Here is what follows from it: whom to ask for what, when a
slice changes hands, and what becomes of a move that went wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from holdfast.log.records import Fence
from holdfast.master.copies import Copies, Sendings
from holdfast.master.drops import AGAIN_SECONDS, Drops
from holdfast.master.events import DigestsTaken
from holdfast.master.instructions import Activate, Apply, Demote, Forget, TakeDigests, TellPeople
from holdfast.master.moves import Move, Moves, Phase, grouped, slices_of
from holdfast.master.progress import Moment, Position, Progress
from holdfast.master.requests import Asking

PROOF_SECONDS = 0.5


class Migration:
    at_once = 32
    """So many slices of one owner are copied for moves at a time: the first are there while the last still wait."""
    proof_seconds = PROOF_SECONDS
    """So long in dual mode without an epoch in which it put out rows, and a slice's states are compared."""

    def __init__(self, progress: Progress, copies: Copies, drops: Drops, asking: Asking) -> None:
        self.moves = Moves()
        self._progress = progress
        self._copies = copies
        self._drops = drops
        self._asking = asking

    def plan(self, wanted: Mapping[int, str]) -> frozenset[int]:
        """Set these slices on their way; those of them that are not there already, or on another way."""
        planned = set()
        for slice_, to in sorted(wanted.items()):
            source = self._progress.owners[slice_]
            if source is not None and source != to and slice_ not in self.moves.of:
                self.moves.of[slice_] = Move(slice_, source, to)
                planned.add(slice_)
        return frozenset(planned)

    # ---------------------------------------------------------------------------------------------- answers

    def begin(self, instruction: Activate | Apply) -> None:
        for slice_ in instruction.slices:
            self.moves.of[slice_].task = instruction.id

    def activated(self, instruction: Activate, now: float) -> None:
        for move in self.moves.with_task(instruction.id):
            move.active(self._progress.at(instruction.epoch), now)

    def applied(self, instruction: Apply, position: Position, digests: Mapping[int, int]) -> None:
        for move in self.moves.with_task(instruction.id):
            move.task, move.position = None, position
        for slice_, digest in digests.items():
            move_ = self.moves.of.get(slice_)
            if move_ is None or move_.phase is not Phase.DUAL:
                continue
            if unlike := move_.compare(instruction.container, position, digest):
                self._abort(
                    move_,
                    instruction.fence,
                    f"slice {slice_} put out {unlike[0]:08x} on {move_.source} and {unlike[1]:08x} on {move_.to} in "
                    f"epoch {instruction.fence.epoch}: it stays on {move_.source}",
                )

    def digested(self, instruction: TakeDigests, answer: DigestsTaken | None, now: float) -> None:
        """What slices were as of an epoch, on one side; None if that failed."""
        found = dict(answer.digests) if answer else {}
        for slice_ in sorted(instruction.slices):
            move = self.moves.of.get(slice_)
            if move is None:
                continue
            state = (answer.graph, found[slice_]) if answer and slice_ in found else None
            if unlike := move.compare_states(instruction.id, instruction.container, state, now):
                self._abort(
                    move,
                    instruction.fence,
                    f"slice {slice_} was {unlike[0]:016x} on {move.source} and {unlike[1]:016x} on {move.to} as of "
                    f"epoch {instruction.epoch}: it stays on {move.source}",
                )

    def failed(self, instruction: Activate | Apply, now: float) -> None:
        self._begin_again(self.moves.with_task(instruction.id), instruction.fence, now)

    def refused(self, source: str, peers: frozenset[str], fence: Fence, now: float) -> None:
        """These peers did not take the copies of an owner."""
        refused = [
            move
            for move in self.moves.of.values()
            if move.source == source and move.to in peers and move.phase is Phase.COPY
        ]
        self._begin_again(refused, fence, now)

    def lose(self, container: str) -> bool:
        """Whether moves were given up by that."""
        gone = [
            slice_
            for slice_, move in self.moves.of.items()
            if move.to == container or (move.source == container and move.phase is Phase.COPY)
        ]
        for slice_ in gone:
            del self.moves.of[slice_]
        return bool(gone)

    def take_over(self, orphans: list[int]) -> None:
        """The owners of these are lost: a destination that was on its way to being the owner is it now."""
        for slice_ in orphans:
            move = self.moves.of.get(slice_)
            if move is not None and move.phase is not Phase.COPY:
                self._progress.give(slice_, move.to, move.position, move.task)
                del self.moves.of[slice_]

    # -------------------------------------------------------------------------------- whatever is possible now

    def switch(self, moment: Moment, leaving: set[str]) -> bool:
        """Hand over what is ready to be; whether owners changed."""
        progress = self._progress
        here = progress.at(moment.committed)
        moves = [move for move in self._at_rest(moment) if move.proven and move.slice not in moment.writing]
        for move in moves:
            progress.give(move.slice, move.to, here)
            del self.moves.of[move.slice]
        for source, gone in grouped(moves, lambda move: move.source).items():
            self._asking.ask(
                Forget(source, moment.fence, slices_of(gone))
                if source in leaving
                else Demote(source, moment.fence, slices_of(gone), moment.committed)
            )
        return bool(moves)

    def prove(self, moment: Moment) -> None:
        """Where no rows have shown for a while that owner and destination are the same, their states are compared. A
        slice that had nothing yet is what it is made of."""
        unproven = [move for move in self._at_rest(moment) if not move.proven and not move.asked]
        if not moment.committed:
            for move in unproven:
                move.proven = True
            return
        due = [move for move in unproven if moment.now - move.looked_at >= self.proof_seconds]
        for (source, to), moves in grouped(due, lambda move: (move.source, move.to)).items():
            slices = slices_of(moves)
            both = [TakeDigests(side, moment.fence, slices, moment.committed) for side in (source, to)]
            questions = [self._asking.ask(one).id for one in both]
            for move in moves:
                move.ask(questions)

    def _at_rest(self, moment: Moment) -> list[Move]:
        """Moves whose two sides rest at the committed epoch, between two."""
        progress, here = self._progress, self._progress.at(moment.committed)
        dual = [move for move in self.moves.of.values() if move.phase is Phase.DUAL] if moment.between else []
        at_rest = [move for move in dual if move.task is None and move.position == here]
        return [move for move in at_rest if progress.rests(move.slice, here)]

    def rebuild(self, moment: Moment) -> None:
        """Destinations that have a copy make it active; those that fell behind in dual mode catch up."""
        here = self._progress.at(moment.committed)
        busy = {one.container for one in self._asking.pending.values() if isinstance(one, Activate)}
        ready: list[Move] = []
        for move in self.moves.of.values():
            if move.not_before > moment.now:
                continue
            copied = move.to in self._copies.held[move.slice] or moment.committed == 0
            behind = move.task is None and move.position < here
            if (move.phase is Phase.COPY and copied) or (move.phase is Phase.DUAL and behind):
                move.phase = Phase.REBUILD
            free = move.to not in busy and move.slice not in self._drops.unsettled(move.to)
            if move.phase is Phase.REBUILD and move.task is None and free:
                ready.append(move)
        for to, moves in grouped(ready, lambda move: move.to).items():
            self.begin(self._asking.ask(Activate(to, moment.fence, slices_of(moves), moment.committed)))

    def shadows(self, first: Position, end: Position) -> dict[tuple[str, Position], frozenset[int]]:
        """Slices in dual mode at a position in [first, end), by destination and position."""
        found: defaultdict[tuple[str, Position], set[int]] = defaultdict(set)
        for slice_, move in self.moves.of.items():
            if move.phase is Phase.DUAL and move.task is None and first <= move.position < end:
                found[move.to, move.position].add(slice_)
        return {key: frozenset(found[key]) for key in sorted(found)}

    def copies_wanted(self, owner: str, now: float) -> Sendings:
        """Slices of this owner that wait for a copy at their destination; not too many at once."""
        moves = [
            move
            for move in self.moves.of.values()
            if move.source == owner and move.phase is Phase.COPY and move.not_before <= now
        ]
        found: Sendings = defaultdict(set)
        for move in moves[: self.at_once]:
            if move.to not in self._copies.held[move.slice]:
                found[move.to].add(move.slice)
        return found

    def begin_again_past(self, position: Position, fence: Fence, now: float) -> None:
        """An epoch is taken back: destinations that applied some of it start over."""
        self._begin_again([move for move in self.moves.of.values() if move.position > position], fence, now)

    def _abort(self, move: Move, fence: Fence, why: str) -> None:
        del self.moves.of[move.slice]
        self._asking.ask(Forget(move.to, fence, frozenset([move.slice])))
        self._copies.used(move.to, [move.slice])
        self._asking.ask(TellPeople("move", why))

    def _begin_again(self, moves: list[Move], fence: Fence, now: float) -> None:
        for to, those in grouped(moves, lambda move: move.to).items():
            self._asking.ask(Forget(to, fence, slices_of(those)))
            self._copies.used(to, slices_of(those))
            for move in those:
                move.begin_again(now + AGAIN_SECONDS)
