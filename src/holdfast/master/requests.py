"""What the master has asked for: numbered, remembered until it is answered, and part of the story it can tell."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from holdfast.master.events import Event
from holdfast.master.instructions import Instruction

STORY = 60

Asked = TypeVar("Asked", bound=Instruction)


class Asking:
    def __init__(self) -> None:
        self.incarnation: int | str = 0
        self.pending: dict[str, Instruction] = {}
        self._new: list[Instruction] = []
        self._story: deque[Event | Instruction] = deque(maxlen=STORY)
        self._count = 0

    def heard(self, event: Event) -> None:
        self._new = []
        self._story.append(event)

    @property
    def new(self) -> list[Instruction]:
        """What was asked for since the last event."""
        return self._new

    def ask(self, instruction: Asked) -> Asked:
        self._count += 1
        numbered = replace(instruction, id=f"{self.incarnation}.{self._count}")
        if numbered.answered:
            self.pending[numbered.id] = numbered
        self._new.append(numbered)
        self._story.append(numbered)
        return numbered

    def ask_all(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            self.ask(instruction)

    def awaits(self, kind: type[Instruction]) -> bool:
        return any(isinstance(instruction, kind) for instruction in self.pending.values())

    def give_up(self, which: Callable[[Instruction], bool]) -> None:
        """Answers to these will not be listened to any more."""
        self.pending = {id_: one for id_, one in self.pending.items() if not which(one)}

    def story(self) -> str:
        """The last events (→) and instructions (←)."""
        return "\n".join(f"  {'→' if isinstance(entry, Event) else '←'} {entry}" for entry in self._story)
