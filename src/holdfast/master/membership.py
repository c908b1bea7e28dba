"""Which containers there are, are coming and are leaving, and how many there shall be: a machine of its own.

It knows nothing of slices, epochs or copies. Who uses the containers is a *user* of it: a job has one, its section;
where several share their containers, each is one. At every turn a user says how it stands, and which of those that are
to leave it needs no more. A container is asked for when every user can spare the attention, leaves if it holds least
of all users' slices together, and ends when nobody needs it.

Pure like the master, and driven by the same events: ``handle(event) -> instructions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.invariants import Impossible, invariant
from holdfast.master.events import ContainerJoined, ContainerLost, Event, ScaleWanted
from holdfast.master.instructions import EndContainer, EndRun, Instruction, NeedContainers

FAILED_STARTS = 3
"""So many containers in a row could not start, and no more are asked for until somebody scales again."""


@dataclass(frozen=True)
class NoneStarted(Event):
    """Of so many containers that were asked for none could start."""

    count: int
    error: Exception = field(compare=False)


@dataclass(frozen=True)
class Standing(Event):
    """How a user stands. Whatever it had released before this it may need again."""

    user: str
    held: Mapping[str, int]
    """Container → how much of it is there."""
    whole: bool
    """Nothing of it is lost, or all of it is back."""
    calm: bool
    """It does not mind if somebody comes now."""


@dataclass(frozen=True)
class Released(Event):
    """Those of the leaving containers that a user needs no more, as it has just said how it stands."""

    user: str
    containers: frozenset[str]


class Membership:
    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.hosts: dict[str, str] = {}
        """The containers that live, and where."""
        self.lost: set[str] = set()
        self.leaving: set[str] = set()
        self.coming = 0
        self.gathered = False
        """As many containers as wanted came together, and one of them still lives."""
        self._had_any = False
        self._failed_starts = 0  # in a row
        self._standing: dict[str, Standing] = {}
        self._released: dict[str, frozenset[str]] = {}

    @property
    def staying(self) -> dict[str, str]:
        return {container: host for container, host in self.hosts.items() if container not in self.leaving}

    @property
    def short(self) -> bool:
        """There are fewer than wanted, and it is worth waiting for more."""
        return len(self.staying) < self.wanted and self._failed_starts < FAILED_STARTS

    @property
    def settled(self) -> bool:
        """Nobody is coming or leaving, and nobody is waited for."""
        return not (self.leaving or self.coming or self.short)

    def handle(self, event: Event) -> list[Instruction]:
        match event:
            case ContainerJoined(container, host):
                self._join(container, host)
            case ContainerLost(container):
                self._lose(container)
            case ScaleWanted(containers):
                invariant(containers >= 1, "a job needs a container")
                self.wanted, self._failed_starts = containers, 0
            case NoneStarted(count, error):
                return [EndRun(error)] if self._could_not_start(count) else []
            case Standing(user):
                self._standing[user], self._released[user] = event, frozenset()
                return self._gather()
            case Released(user, containers):
                invariant(user in self._standing, f"'{user}' releases containers and is no user")
                self._released[user] = containers
                return self._end()
            case _:
                raise Impossible("an event that is no concern of the membership")
        return []

    def _join(self, container: str, host: str) -> None:
        if container in self.lost or container in self.hosts:
            return  # late, or doubled
        self.hosts[container] = host
        self.coming = max(0, self.coming - 1)
        self._had_any, self._failed_starts = True, 0

    def _lose(self, container: str) -> None:
        if container not in self.hosts and container not in self.lost:  # it died before it joined
            self.coming = max(0, self.coming - 1)
            self._failed_starts += 1
        self.lost.add(container)
        self.hosts.pop(container, None)
        self.leaving.discard(container)

    def _could_not_start(self, count: int) -> bool:
        """Whether there is no way to go on.

        At first that is so. Later the job goes on with the containers it has; with none, it tries a few times.
        """
        self.coming = max(0, self.coming - count)
        self._failed_starts += 1
        return not self.gathered and (not self._had_any or self._failed_starts >= FAILED_STARTS)

    def _gather(self) -> list[Instruction]:
        """Have as many as wanted. A lost one is replaced when all is whole again and nobody minds; those that hold
        least have to leave."""
        users = self._standing.values()
        whole, calm = all(one.whole for one in users), all(one.calm for one in users)
        self.gathered = (self.gathered and bool(self.hosts)) or len(self.hosts) >= self.wanted
        if not self.hosts:
            self.leaving.clear()
        missing = self.wanted - len(self.staying)
        back = sorted(self.leaving)[: max(0, missing)]
        self.leaving -= set(back)
        missing -= len(back) + self.coming
        asked: list[Instruction] = []
        if missing > 0 and (not self.gathered or (whole and calm and self._failed_starts < FAILED_STARTS)):
            self.coming += missing
            asked.append(NeedContainers(missing))
        surplus = len(self.staying) - self.wanted
        if surplus > 0 and self.gathered and whole and not self.coming:
            held = {container: sum(one.held.get(container, 0) for one in users) for container in self.staying}
            self.leaving |= set(sorted(held, key=lambda container: (held[container], container))[:surplus])
        return asked

    def _end(self) -> list[Instruction]:
        nobodys = self.leaving.intersection(*self._released.values())
        for container in nobodys:
            self._lose(container)
        return [EndContainer(container) for container in sorted(nobodys)]
