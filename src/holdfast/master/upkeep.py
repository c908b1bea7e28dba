"""Copies are kept where they shall be, and up to date: what owners are asked to send, to drop and to save."""

from __future__ import annotations

from holdfast.master.copies import Copies
from holdfast.master.drops import Drops
from holdfast.master.instructions import DropCopies, SaveShards, SendCopies
from holdfast.master.membership import Membership
from holdfast.master.migration import Migration
from holdfast.master.progress import Moment, Progress
from holdfast.master.requests import Asking
from holdfast.master.saves import Saving
from holdfast.safety.policies import Terms


class Upkeep:
    def __init__(
        self,
        safety: Terms,
        progress: Progress,
        members: Membership,
        copies: Copies,
        migration: Migration,
        drops: Drops,
        asking: Asking,
    ) -> None:
        self.saving = Saving(safety)
        self._safety = safety
        self._progress = progress
        self._members = members
        self._copies = copies
        self._migration = migration
        self._drops = drops
        self._asking = asking
        self._updated: dict[str, tuple[int, float]] = {}
        """When an owner's copies were last brought up to date: epoch, time."""
        self._moves_next: set[str] = set()
        """Owners whose last sending was an update."""

    def advance(self, moment: Moment, *, settled: bool) -> None:
        if moment.whole:
            self._plan(moment, level=settled)
        if moment.whole and moment.committed:
            self._send(moment)
            self._save(moment)

    def lose(self, container: str) -> None:
        self._updated.pop(container, None)
        self._moves_next.discard(container)
        self.saving.lose(container)

    def _plan(self, moment: Moment, *, level: bool) -> None:
        owners, moving = self._progress.owners, self._migration.moves.of.keys()
        surplus = self._copies.plan(owners, self._members.staying, moving, level=level)
        for holder, slices in surplus.items():
            if holder in self._members.hosts:
                self._asking.ask(DropCopies(holder, moment.fence, slices))

    def _send(self, moment: Moment) -> None:
        """One sending at a time for each owner: what is due to be brought up to date, or what moves, or is missing.

        Updates and moves take turns: where one update takes so long that the next is due by then, nothing would move.
        """
        moves = self._migration.moves
        sending = {one.container for one in self._asking.pending.values() if isinstance(one, SendCopies)}
        for owner, slices in self._progress.held().items():
            if owner in sending:
                continue
            epoch, at = self._updated.setdefault(owner, (0, moment.now))
            update = self._safety.every.passed(moment.committed - epoch, moment.now - at)
            moving = self._migration.copies_wanted(owner, moment.now)
            if moving and (not update or owner in self._moves_next):
                due = moving
                self._moves_next.discard(owner)
            else:
                due = self._copies.due(slices, moment.committed, update=update)
                if update:
                    self._updated[owner] = (moment.committed, moment.now)
                    self._moves_next.add(owner)
            sendings = {peer: due[peer] - self._drops.unsettled(peer) - moves.active_on(peer) for peer in sorted(due)}
            to = tuple((peer, frozenset(numbers)) for peer, numbers in sendings.items() if numbers)
            if to:
                every = frozenset[int]().union(*(numbers for _, numbers in to))
                self._asking.ask(
                    SendCopies(
                        owner,
                        moment.fence,
                        every,
                        moment.committed,
                        to,
                        moving=due is moving,
                    )
                )

    def _save(self, moment: Moment) -> None:
        """One saving at a time for each owner."""
        busy = {one.container for one in self._asking.pending.values() if isinstance(one, SaveShards)}
        hosts = frozenset(self._members.hosts)
        for owner, slices in self._progress.held().items():
            if owner not in busy and self.saving.begin(owner, slices, hosts, moment.committed, moment.now):
                self._asking.ask(SaveShards(owner, moment.fence, slices, moment.committed))
