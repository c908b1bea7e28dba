"""Spark's own checkpoint, for a query in which the sources stand at other places than before.

Spark makes one reader of a source, however often the source stands in the plan, and plans all places of it alike. But
it writes one offset for each place (every stage and every stateless sink over a source is one), by position alone, and
keeps what a reader notes for itself (the files it has seen, say) under the number of the source among the unlike ones.
So a stage that comes or goes would leave Spark with a checkpoint of another length. What it needs is all there, and is
written once more, in the order of the new plan, into a folder of its own. That folder counts as soon as the graph's
file names it; until then, and for whoever goes back, the old one is as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import StoreError
from holdfast.log.repair import COMMITTED, checksum_name, checksums
from holdfast.log.store import Store


def rebase(section: Store, old: str, new: str, before: Sequence[str], now: Sequence[str], batch: int) -> None:
    """Write the checkpoint ``new`` from ``old``: ``batch`` was the last one, and is done.

    ``before`` and ``now`` name the source at each place; no name is new. Batches after ``batch`` were planned and never
    begun: Spark plans them again.
    """
    _write(section, f"{new}/metadata", section.read(f"{old}/metadata"))
    for number in range(max(0, batch - 1), batch + 1):  # Spark looks at the last two
        file = f"offsets/{number}"
        version, settings, *offsets = section.read(f"{old}/{file}").decode().splitlines()
        if version != "v1" or len(offsets) != len(before):
            raise StoreError(
                f"{section.uri}/{old}/{file} is not what Spark was known to write: format {version}, {len(offsets)} "
                f"offsets for {len(before)} places of sources.",
                safe="Nothing was changed.",
                todo="Start the job with the stages and sinks over sources that it had, or with a new store.",
            )
        rewritten = [version, settings, *[offsets[before.index(name)] for name in now]]
        _write(section, f"{new}/{file}", "\n".join(rewritten).encode())
        done = section.read_if_present(f"{old}/commits/{number}")
        _write(section, f"{new}/commits/{number}", done or COMMITTED)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(before))}
    for number, name in enumerate(dict.fromkeys(now)):
        _copy(section, f"{old}/sources/{numbers[name]}", f"{new}/sources/{number}")


def _copy(section: Store, old: str, new: str) -> None:
    for name in section.list(old):
        _write(section, f"{new}/{name}", section.read(f"{old}/{name}"))
    for folder in section.list_folders(old):
        _copy(section, f"{old}/{folder}", f"{new}/{folder}")


def _write(section: Store, name: str, content: bytes) -> None:
    section.write(name, [content])
    if section.is_local:  # as Hadoop has it: whoever mends the checkpoint tells whole files by them
        section.write(checksum_name(name), [checksums(content)])
