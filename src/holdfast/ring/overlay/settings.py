"""What can be set about the ring. Times are counted in ticks: how long a tick is, only the shell knows."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.ids import BITS
from holdfast.invariants import invariant


@dataclass(frozen=True, slots=True)
class Settings:
    """The same on all nodes of a ring, as far as ``bits`` and ``leaves`` go."""

    bits: int = 4
    """b: bits in a digit. A route takes about log(N) to the base 2**b hops."""
    leaves: int = 24
    """Size of a leaf set, half of it on either side."""
    patience: int = 3
    """So many ticks in a row a leaf must be silent to count as lost."""
    exchange_every: int = 8
    """Ticks between two sendings of the leaf set to the nearest neighbours when nothing has changed."""
    row_every: int = 8
    """Ticks between two questions for a row of another's routing table."""
    seek_every: int = 16
    """Ticks between two searches for one's own place in the ring, through a distant node."""
    probe_gap: int = 16
    """The longest gap, in ticks, between two attempts to reach a lost node again."""
    lost_kept: int = 64
    """How many lost nodes are remembered and probed."""
    refresh_every: int = 3
    """Ticks between two reports of a child to its parent in a group's tree."""
    gather_within: int = 40
    """A gather not complete after so many ticks is answered with what there is."""
    retry_every: int = 4
    """Ticks after which a message that wants a receipt is sent again."""
    remember: int = 64
    """Ticks for which at least the ids of messages are remembered, to drop doubled ones."""

    def __post_init__(self) -> None:
        invariant(BITS % self.bits == 0, f"digits of {self.bits} bits do not fit {BITS} bits")
        invariant(self.leaves >= 2, "a leaf set has two sides")
        invariant(self.leaves % 2 == 0, "a leaf set has two equal sides")
