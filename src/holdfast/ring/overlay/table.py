"""The prefix routing table: in row r, column d, a node that shares r digits with the owner and goes on with d.

Whoever is known first keeps the place until it is lost. Pastry would take the nearest by delay; within one data
centre, where containers live, that buys little and makes tables change for ever.
"""

from __future__ import annotations

from holdfast.ids import BITS, digit, shared


class RoutingTable:
    __slots__ = ("_rows", "bits", "owner", "peers")

    def __init__(self, owner: int, bits: int) -> None:
        self.owner = owner
        self.bits = bits
        self.peers: dict[int, None] = {}
        """Everyone in the table, oldest first."""
        self._rows: list[list[int | None]] = []

    def add(self, peer: int) -> bool:
        """Takes the peer in, if its place is free."""
        bits = self.bits
        row = (BITS - (self.owner ^ peer).bit_length()) // bits
        rows = self._rows
        if row * bits >= BITS:  # the owner itself
            return False
        while len(rows) <= row:
            rows.append([None] * (1 << bits))
        column = digit(peer, row, bits)
        if rows[row][column] is not None:
            return False
        rows[row][column] = peer
        self.peers[peer] = None
        return True

    def remove(self, peer: int) -> int | None:
        """The row in which it was, or None."""
        if peer not in self.peers:
            return None
        row = shared(self.owner, peer, self.bits)
        self._rows[row][digit(peer, row, self.bits)] = None
        del self.peers[peer]
        return row

    def towards(self, key: int) -> int | None:
        """The node that shares one digit more with the key than the owner does, if one is known."""
        row = (BITS - (self.owner ^ key).bit_length()) // self.bits
        if row >= len(self._rows):
            return None
        return self._rows[row][digit(key, row, self.bits)]

    def row(self, number: int) -> tuple[int, ...]:
        if number >= len(self._rows):
            return ()
        return tuple([peer for peer in self._rows[number] if peer is not None])

    def rows_from(self, number: int) -> list[int]:
        """Everyone who shares at least so many digits with the owner."""
        return [peer for row in self._rows[number:] for peer in row if peer is not None]

    def first_gap(self) -> int | None:
        """The first row with an empty place besides the owner's own: the one where a gap costs routes most."""
        return next((number for number, row in enumerate(self._rows) if row.count(None) > 1), None)

    @property
    def depth(self) -> int:
        """Rows with somebody in them, or with such a row below."""
        return len(self._rows)
