"""A feed, a pump and a master as one machine: what one says is heard by the next."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.master.events import Answer, BlockThere, Event, GoOn, Started
from holdfast.master.feed import BatchOffered, Feed, FeedStarted, OfferUnwanted, SinksChanged
from holdfast.master.instructions import Instruction, ToPump
from holdfast.master.machine import Master
from holdfast.master.pump import EndEpochs, EpochsOver, HasRead, Pump, PumpHeld, PumpLet, TickWanted


class Fed:
    def __init__(self, master: Master, feed: Feed | None = None, pump: Pump | None = None) -> None:
        self.master, self.feed, self.pump = master, feed or Feed(), pump or Pump()

    def handle(self, event: Event) -> list[Instruction]:
        return list(self._follow(event))

    def awaits(self, instruction: Instruction) -> bool:
        """Whether its answer is still of interest."""
        return self.feed.awaits(instruction.id) or self.master.awaits(instruction)

    def _follow(self, said: Event | Instruction) -> Iterator[Instruction]:
        further: Iterator[Event | Instruction]
        match said:
            case ToPump():
                further = self.pump.tell(said)
            case Instruction():
                yield said
                return
            case FeedStarted():
                list(self.pump.hear(said))
                further = self.feed.hear(said)
            case Started():
                list(self.pump.hear(said))
                further = iter(self.master.handle(said))
            case HasRead(position=position):
                further = self.feed.read(position)
            case EpochsOver(error=error):
                list(self.pump.hear(said))
                further = iter(list(self.feed.give_up(error)) or [EndEpochs(error)])
            case PumpHeld() | PumpLet() | TickWanted() | BlockThere() | GoOn():
                further = self.pump.hear(said)
            case BatchOffered():
                further = iter([*self.feed.hear(said), *self._tried_again()])
            case OfferUnwanted() | SinksChanged():
                further = self.feed.hear(said)
            case Answer(to=to) if self.feed.awaits(to):
                further = self.feed.hear(said)
            case _:
                further = iter(self.master.handle(said))
        for one in list(further):
            yield from self._follow(one)

    def _tried_again(self) -> Iterator[Event]:
        """A batch that came when an epoch had failed, and nobody had waited for that, waits for it now: it is tried
        once more, and if it fails again the batch does, too. Else nobody would ever hear of either. While it is being
        decided what becomes of that epoch, the batch waits for that."""
        if self.pump.stuck and not self.feed.idle:
            yield GoOn()
