"""The ledger's files of the source's blocks; what they are is in ``blocks``."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import StoreError
from holdfast.log.blocks import Begun, Block, TakenOver
from holdfast.log.numbered import Numbered, read_record
from holdfast.log.store import Store


def numbered_blocks(section: Store) -> Numbered[Block]:
    return Numbered(section, Block.file_of, Block.from_bytes)


class BlockFiles:
    """Of one section; ``Ledger`` has the rest."""

    store: Store
    section: Store
    _blocks: Numbered[Block]

    def put_block(self, block: Block) -> Block:
        """What has that number from now on: ``block`` if we were first, else the winner's."""
        return self._blocks.put(block.number, block)[0]

    def get_block(self, number: int) -> Block | None:
        return self._blocks.get(number)

    def last_block(self) -> Block | None:
        return self._blocks.newest()

    def block_numbers(self) -> list[int]:
        """Those that have a file."""
        return self._blocks.numbers()

    def put_begun(self, begun: Begun) -> Begun:
        """With what sinks over the source begin before there is a block: ``begun`` if we were first."""
        if self.section.put_if_absent(begun.file, begun.to_bytes()):
            return begun
        found = self.begun(begun.number)
        if found is None:
            raise StoreError(f"{begun.file} was there and is gone: somebody is deleting files of {self.store.uri}")
        return found

    def begun(self, number: int) -> Begun | None:
        return read_record(self.section, Begun.file_of(number), Begun.from_bytes)

    def put_taken_over(self, taken: TakenOver) -> None:
        """The sink has the batch of that block, also for whoever takes it in after us."""
        self.section.put_if_absent(taken.file, taken.to_bytes())

    def taken_over(self, number: int, sinks: Iterable[str]) -> frozenset[str]:
        """Those of the sinks that are known to have the batch of that block."""
        return frozenset(sink for sink in sinks if self.section.exists(TakenOver.file_of(number, sink)))
