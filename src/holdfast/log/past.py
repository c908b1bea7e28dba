"""What a graph keeps of those before it, whose files go when nothing can be replayed in their terms any more.

It must not grow with every change, so each part has a bound: of changes the last ones are told; of the names that
stages have had, the highest number of each (``late/dear~7``), for so many names as were used last. What falls out there
leaves one number behind, which is no lower than any that fell out: a name that is not known gets a higher one. So no
name is ever given twice, though most are forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.log.graphs import Graphs
from holdfast.log.records import GraphFile

CHANGES_TOLD = 100
CHANGE_LENGTH = 1000
NAMES_KEPT = 1000

_NUMBERED = re.compile(r"(.+)~([1-9]\d*)", re.DOTALL)


@dataclass(frozen=True)
class Told:
    """A change that was made while the job ran."""

    version: int
    text: str
    by: str
    at: int  # ms


@dataclass(frozen=True)
class Names:
    """The names that stages have had."""

    highest: Mapping[str, int] = field(default_factory=dict)
    """Of a name that is known: its highest number. A name without one counts as the first. The last used come last."""
    floor: int = 0
    """Of all others."""

    def had(self, name: str) -> bool:
        """Whether a stage has had it, as far as is known: it may be that none had."""
        plain, number = _numbered(name)
        return number <= self.highest.get(plain, self.floor)

    def free(self, name: str) -> str:
        """The name, or one with a number, that no stage has had."""
        number, found = max(2, self.highest.get(name, self.floor) + 1), name
        while self.had(found):
            number, found = number + 1, f"{name}~{number}"
        return found

    def with_names(self, names: Iterable[str]) -> Names:
        highest, floor = dict(self.highest), self.floor
        for plain, number in map(_numbered, names):
            highest[plain] = max(number, highest.pop(plain, 0))
        while len(highest) > NAMES_KEPT:
            floor = max(floor, highest.pop(next(iter(highest))))
        return Names(highest, floor)

    def without(self, name: str) -> Names:
        """It was kept free for a stage, and is not needed."""
        plain, number = _numbered(name)
        if self.highest.get(plain) != number:
            return self
        others = {one: highest for one, highest in self.highest.items() if one != plain}
        return Names(others | ({plain: number - 1} if number - 1 > self.floor else {}), self.floor)


def _numbered(name: str) -> tuple[str, int]:
    found = _NUMBERED.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, 1)


@dataclass(frozen=True)
class Past:
    names: Names = field(default_factory=Names)
    input: int = -1
    """The highest number that an input has had."""
    changes: tuple[Told, ...] = ()

    @classmethod
    def of(cls, graphs: Graphs) -> Past:
        """All graphs up to the newest, as far as they are known. Those of before this was kept still have their
        files."""
        newest = graphs.later[-1] if graphs.later else None
        if newest is not None and newest.past:
            return cls.from_dict(newest.past)._with(newest, newest.stages)
        found, counted = cls()._with(None, graphs.first.stages if graphs.first else []), graphs.before(graphs.newest)
        for one in graphs.later:
            found = found._with(one if one.version in counted else None, one.stages)
        return found

    def _with(self, graph: GraphFile | None, stages: Iterable[Mapping[str, Any]]) -> Past:
        stages = list(stages)
        numbers = [place["number"] for stage in stages for place in stage.get("inputs", ())]
        names = self.names.with_names(stage["name"] for stage in stages)
        told = () if graph is None or not graph.live else _told(graph)
        return Past(names, max([self.input, *numbers]), (*self.changes, *told)[-CHANGES_TOLD:])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Past:
        return cls(Names(**said["names"]), said["input"], tuple(Told(**one) for one in said["changes"]))


def _told(graph: GraphFile) -> tuple[Told, ...]:
    by = graph.by or (str(graph.updates[-1].get("by", "")) if graph.updates else "")
    return tuple(Told(graph.version, line[:CHANGE_LENGTH], by, graph.created) for line in graph.changes)
