"""What may go from a store: one pure judgement over what it holds, and a shell that carries it out behind the epochs.

Nothing goes that somebody may still need, who may be an older driver that has lost the job without knowing:

- the log is cut at the second newest complete checkpoint, never above it; prepares and commits of the last epochs stay;
- a segment that no prepare names goes when its level is prepared without it. Until then the prepare of an older driver
  may still name it, and win. One of a batch is told by the batch: it goes when that has a block that does not name it,
  or when the log is cut above the epoch that reads the block;
- blocks stay until they are read and their epoch's log is cut, and the last ones longer, so that Spark may offer what
  it has forgotten; what was noted of a batch before it had a block goes with that;
- a pack that no manifest names goes when a newer checkpoint of its own driver is complete, when two are complete above
  it, or after an hour if its driver was replaced: whoever wrote it has given it up;
- where the log has units of the state, it is cut below the oldest footprint as of right before the oldest one that
  counts now, and files of entries go with it; but not before those that a recovery would then need were read back. A
  file of entries that its epoch's commit does not name goes at once. Checkpoints below that cut go with it, also
  the one that units began with; and when a job goes on without units, all files of entries;
- marks go with their epoch's commit, which says more; files in the making after ten minutes, routing tables but for
  the last ones;
- another folder of Spark's checkpoint goes when epochs of the new graph are committed: nobody goes back behind those;
- blocks of a named stream go when every reader that holds something has read them, and the stream is to keep them no
  longer (``holds``);
- packs that a snapshot names stay for as long as that does, and segments of rows that waited in loops at its epoch;
  nothing else is kept for it;
- a graph goes when nothing that can still be replayed or loaded is in its terms, and the one that the job has says what
  must be known of it (``log.past``).

Owners stay, since a replaced driver looks for the one after its own.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from holdfast.errors import CorruptionError, StoreError
from holdfast.log import footprints
from holdfast.log.blocks import Block
from holdfast.log.ledger import Ledger
from holdfast.log.pack import parse_pack_name
from holdfast.log.probe import PROBED
from holdfast.log.records import FEED, SPARK, Commit, GraphFile, Manifest, Prepare
from holdfast.log.segment import parse_segment_name
from holdfast.log.snapshots import Snapshots
from holdfast.log.store import Store
from holdfast.log.stream_tidying import StreamTidying
from holdfast.log.streams import streams_of

KEPT = 100
"""How many epochs' prepares and commits outlive the log's cut."""
ROUTINGS_KEPT = 10
MAKING_SECONDS = 600.0
GIVEN_UP_SECONDS = 3600.0
READS = 500
"""Prepares that one round reads at most."""
ROUND_SECONDS = 10.0
"""How long one round deletes at most; the next one goes on."""

_PREPARE = re.compile(r"(\d{10,})\.(\d+)")
_MARK = re.compile(r"(\d{10,})\.(?!without)[a-z].*")
_NOTE = re.compile(r"(\d{10,})\.(begun|taken-.*)")
_WITHOUT = re.compile(r"(\d{10,})\.without\d+")
_MAKING = re.compile(rf"\..+(\.tmp|\.tmp\.crc|\.[0-9a-f]{{32}})|{PROBED.pattern}")
_SPARK = re.compile(rf"{SPARK}(?:-(\d+)-\d+)?")

Level = tuple[int, int]
Ages = Mapping[str, float]


@dataclass(frozen=True)
class Held:
    """What a section holds, by name, and what is known of it. Ages are in seconds."""

    incarnation: int  # of who asks
    segments: Mapping[str, Level] = field(default_factory=dict)
    prepares: frozenset[Level] = frozenset()
    named: Mapping[Level, frozenset[str]] = field(default_factory=dict)  # by those prepares that were looked at
    marks: Mapping[str, int] = field(default_factory=dict)  # → epoch
    without: Mapping[str, int] = field(default_factory=dict)  # notes of what an epoch goes on without → epoch
    commits: tuple[int, ...] = ()
    manifests: tuple[Manifest, ...] = ()  # of the job's graph, that can be read; the oldest first
    manifest_files: tuple[int, ...] = ()
    packs: Ages = field(default_factory=dict)
    making: Ages = field(default_factory=dict)  # files that nobody has given their name yet
    graph: GraphFile | None = None
    committed_graph: int = 0  # in whose terms the last committed epoch is
    folders: tuple[str, ...] = ()  # of Spark's checkpoints
    graphs: tuple[int, ...] = ()  # the versions that have a file
    kept: frozenset[str] = frozenset()  # packs and segments that snapshots name
    terms: Mapping[int, int] = field(default_factory=dict)  # epochs → the graphs of those prepares that were looked at
    blocks: frozenset[int] = frozenset()
    batches: Mapping[str, int] = field(default_factory=dict)  # segments of batches → the number of the block of each
    by_blocks: Mapping[int, frozenset[str]] = field(default_factory=dict)  # named by those that were looked at
    block_notes: Mapping[str, int] = field(default_factory=dict)  # of what was begun → block
    read: int = 0  # up to this block the log that is cut has read
    hold: int | None = None  # the log up to here is not needed for units of the state, that have come into it since
    units: bool = True  # the newest commit says where they are, or there is none yet
    entries: Mapping[str, int] = field(default_factory=dict)  # files of them → epoch
    entries_named: Mapping[int, frozenset[str]] = field(default_factory=dict)  # by those commits that were looked at


def may_go(held: Held, up_to: int) -> list[str]:
    """Names in the section, those of folders with a slash behind; in the order in which they may be deleted."""
    cut = _cut(held.manifests, up_to, held.hold)
    return [
        *_manifests(held),
        *(name for name in held.packs if _pack_may_go(held, name)),
        *(name for name, level in held.segments.items() if _segment_may_go(held, name, level, cut)),
        *(name for name, number in held.batches.items() if number <= held.read or _of_no_block(held, name, number)),
        *_prepares_and_commits(held, cut),
        *_blocks(held),
        *(name for name, epoch in held.entries.items() if _entry_may_go(held, name, epoch)),
        *(name for name, epoch in held.marks.items() if epoch <= max(held.commits, default=0)),
        *(name for name, age in held.making.items() if age > MAKING_SECONDS),
        *(f"{folder}/" for folder in held.folders if _folder_may_go(held, folder)),
    ]


def _cut(manifests: Iterable[Manifest], up_to: int, hold: int | None) -> int:
    """Where the log has units of the state nobody comes back from a checkpoint, if there is one."""
    return cut_of(manifests, up_to) if hold is None else hold


def graphs_may_go(held: Held, up_to: int) -> list[str]:
    """The same for graphs, which are the job's and not the section's; the oldest first, so that there is never a gap.

    The graphs of epochs never fall, so of the log that stays the first prepare has the oldest.
    """
    terms, newest = held.terms.get(cut_of(held.manifests, up_to) + 1), held.graph
    if newest is None or not newest.past or terms is None:
        return []
    oldest = min([terms, newest.version, *(-1 if one.graph is None else one.graph for one in held.manifests[-2:])])
    return [GraphFile.file_of(version) for version in sorted(held.graphs) if version < oldest]


def cut_of(manifests: Iterable[Manifest], up_to: int) -> int:
    """The epoch up to which the log may go: never above the second newest checkpoint, whatever is asked."""
    *_, second, _ = [0, 0, *(one.epoch for one in manifests)]
    return min(up_to, second)


def _manifests(held: Held) -> list[str]:
    """Before their packs, so that none ever names a missing one."""
    if held.hold is not None:  # the log has what they had, also that of the graph before
        return [Manifest.file_of(number) for number in held.manifest_files if number < held.hold]
    if len(held.manifests) < 2:
        return []
    return [Manifest.file_of(number) for number in held.manifest_files if number < held.manifests[-2].epoch]


def _pack_may_go(held: Held, name: str) -> bool:
    parsed = parse_pack_name(name)
    if parsed is not None and held.hold is not None and parsed[0].epoch < held.hold and name not in held.kept:
        return True
    if parsed is None or name in held.kept or any(name in one.packs for one in held.manifests[-2:]):
        return False
    fence = parsed[0]
    if len(held.manifests) > 1 and fence.epoch < held.manifests[-2].epoch:
        return True
    if fence.epoch in held.manifest_files or any(name in one.packs for one in held.manifests):
        return False  # it counts, or may: also by a manifest of the graph before, or one that cannot be read now
    if fence.incarnation == held.incarnation:
        return bool(held.manifests) and fence.epoch < held.manifests[-1].epoch
    return fence.incarnation < held.incarnation and held.packs[name] > GIVEN_UP_SECONDS


def _segment_may_go(held: Held, name: str, level: Level, cut: int) -> bool:
    return name not in held.kept and (level[0] <= cut or _unnamed(held, name, level))


def _unnamed(held: Held, name: str, level: Level) -> bool:
    return level in held.named and name not in held.named[level]


def _of_no_block(held: Held, name: str, number: int) -> bool:
    return number in held.by_blocks and name not in held.by_blocks[number]


def _blocks(held: Held) -> list[str]:
    recent = set(sorted(held.blocks)[-KEPT:])
    gone = [number for number in sorted(held.blocks) if number <= held.read and number not in recent]
    notes = [name for name, number in held.block_notes.items() if number <= max(held.blocks, default=0)]
    return [*(Block.file_of(number) for number in gone), *notes]


def _entry_may_go(held: Held, name: str, epoch: int) -> bool:
    below = epoch < (max(held.commits, default=0) if held.hold is None and not held.units else held.hold or 0)
    return below or (epoch in held.entries_named and name not in held.entries_named[epoch])


def _prepares_and_commits(held: Held, cut: int) -> list[str]:
    recent = set(sorted({epoch for epoch, _ in held.prepares})[-KEPT:])
    gone = [key for key in sorted(held.prepares) if key[0] <= cut and key[0] not in recent]
    # The commit of the epoch at the hold says where its entries are, which are needed.
    done = [epoch for epoch in sorted(held.commits)[:-KEPT] if epoch <= cut and epoch != held.hold]
    noted = [name for name, epoch in held.without.items() if any(epoch == key[0] for key in gone)]
    return [*(Prepare.file_of(*key) for key in gone), *noted, *(f"commit/{epoch:010d}" for epoch in done)]


def _folder_may_go(held: Held, folder: str) -> bool:
    graph, match = held.graph, _SPARK.fullmatch(folder)
    if graph is None or match is None or folder == graph.spark or held.committed_graph < graph.version:
        return False
    return int(match[1] or 0) <= graph.version


class Entries:
    """What a janitor knows of files of entries from round to round."""

    def __init__(self) -> None:
        self._verified = 0  # up to which epoch those that are needed were read back
        self._hold = 0
        self._clean: dict[int, int] = {}  # how many files an epoch had when all of them were named

    def hold(self, ledger: Ledger, commit: Commit | None) -> int | None:
        """Up to where the log may go: no further than what was read back allows. None: it has no units."""
        if commit is None or commit.footprints is None:
            return None
        deadline = time.monotonic() + ROUND_SECONDS
        try:
            wanted, last = footprints.hold(ledger, commit.fence.epoch), commit.footprints.oldest - 1
            self._verified = max(self._verified, wanted - 1)
            for epoch in range(max(self._verified + 1, wanted), last + 1):
                footprints.verify(ledger, epoch)
                self._verified = epoch
                if time.monotonic() > deadline:
                    break
        except StoreError:
            return self._hold  # a recovery would have to do without: what it needs then stays
        if self._verified >= last:
            self._hold = max(self._hold, wanted)
        return self._hold

    def files(self, ledger: Ledger) -> tuple[dict[str, int], dict[int, frozenset[str]]]:
        """Those that there are, and which of them commits name, of epochs that have others than last time."""
        listed = ledger.section.list("entry")
        found = {f"entry/{name}": epoch for name in listed if (epoch := footprints.epoch_of(name)) is not None}
        counts = Counter(found.values())
        self._clean = {epoch: count for epoch, count in self._clean.items() if epoch in counts}
        named: dict[int, frozenset[str]] = {}
        unsure = [epoch for epoch, count in counts.items() if self._clean.get(epoch) != count]
        for epoch in islice(sorted(unsure, reverse=True), READS):
            try:
                commit = ledger.get_commit(epoch)
            except CorruptionError:
                continue  # nobody can say
            if commit is not None and commit.footprints is not None:
                files = (one.name for one in commit.footprints.files if one.inline is None)
                named[epoch] = frozenset(files)
                self._clean[epoch] = len(named[epoch])
        return found, named


class Janitor:
    """Looks at a section and deletes what may go, at a bounded pace. One round at a time."""

    def __init__(self, store: Store, section: str, incarnation: int, settle: Callable[[], None] = lambda: None) -> None:
        self._store, self._name, self._incarnation = store, section, incarnation
        self._settle = settle  # before blocks go: what they carry must be safe without them
        self._snapshots = Snapshots(store)
        self._streams = StreamTidying(store)
        self._clean: dict[Level, int] = {}  # how many segments there were when all of them were named
        self._clean_blocks: dict[int, int] = {}
        self._entries = Entries()

    def round(self, up_to: int) -> list[str]:
        """What was deleted. ``up_to`` is the epoch that the log may be cut at."""
        ledger = Ledger(self._store, self._name)  # of its own: deleting much must not hold up an epoch's commit
        self._snapshots.expire(time.time_ns() // 1_000_000)
        held = self._held(ledger, up_to)
        going = may_go(held, up_to)
        if any(name.startswith(("prepare/", "block/")) for name in going):
            self._settle()
        done = self._delete(ledger.section, going)
        self._delete(self._store, [*graphs_may_go(held, up_to), *self._job_wide()])
        return done + self._streams.round(time.monotonic() + ROUND_SECONDS)

    def _delete(self, store: Store, names: Iterable[str]) -> list[str]:
        deadline, done = time.monotonic() + ROUND_SECONDS, list[str]()
        for name in names:
            if time.monotonic() > deadline:
                break
            if name.endswith("/"):
                store.delete_folder(name.rstrip("/"))
            else:
                store.delete([name])
            done.append(name)
        return done

    def _held(self, ledger: Ledger, up_to: int) -> Held:
        section = ledger.section
        found = {f"log/{name}": parsed for name in section.list("log") if (parsed := parse_segment_name(name))}
        segments = {name: (one.fence.epoch, one.level) for name, one in found.items() if one.level}
        newest, numbers = ledger.last_block(), ledger.block_numbers()
        apart = newest.number - newest.batch.batch_id if newest is not None else 0  # blocks and batches go side by side
        batches = {name: one.fence.epoch + apart for name, one in found.items() if not one.level} if newest else {}
        notes = {f"block/{name}": int(match[1]) for name in section.list("block") if (match := _NOTE.fullmatch(name))}
        files = section.list("prepare")
        prepares = frozenset((int(match[1]), int(match[2])) for name in files if (match := _PREPARE.fullmatch(name)))
        folders = tuple(folder for folder in section.list_folders() if _SPARK.fullmatch(folder))
        commit = ledger.last_committed()
        last = ledger.get_prepare(commit.fence.epoch, 1) if commit else None
        within = [ledger.spark + tail for tail in ("", "/offsets", "/commits")]
        within += [f"{ledger.spark}/sources/{name}" for name in section.list_folders(f"{ledger.spark}/sources")]
        manifests = tuple(ledger.manifests(on_corrupt=lambda _: None))
        ages = section.ages("checkpoint", lambda name: name.endswith(".pack"))
        kept = self._snapshots.held()
        hold = self._entries.hold(ledger, commit)
        above = ledger.get_prepare(_cut(manifests, up_to, hold) + 1, 1)
        return Held(
            self._incarnation,
            segments,
            prepares,
            self._named(ledger, segments, prepares),
            {f"prepare/{name}": int(match[1]) for name in files if (match := _MARK.fullmatch(name))},
            {f"prepare/{name}": int(match[1]) for name in files if (match := _WITHOUT.fullmatch(name))},
            tuple(int(name) for name in section.list("commit") if name.isdecimal()),
            manifests,
            tuple(
                int(name.removesuffix(".complete"))
                for name in section.list("checkpoint")
                if name.removesuffix(".complete").isdecimal()
            ),
            ages,
            _making(section, ["", "log", "block", "prepare", "commit", "checkpoint", "entry", *within]),
            ledger.graph(),
            last.graph if last else 0,
            folders,
            tuple(ledger.graph_versions()),
            frozenset([*ages, *segments]) if kept is None else kept,  # one that cannot be read may name any of them
            {} if above is None else {above.fence.epoch: ledger.graphs().version_of(above)},
            frozenset(numbers),
            batches,
            self._named_by_blocks(ledger, batches, frozenset(numbers)),
            notes,
            0 if above is None else above.ranges[FEED].first - 1,
            hold,
            commit is None or commit.footprints is not None,
            *self._entries.files(ledger),
        )

    def _named_by_blocks(
        self, ledger: Ledger, batches: Mapping[str, int], blocks: frozenset[int]
    ) -> dict[int, frozenset[str]]:
        """The same for blocks."""
        counts = Counter(batches.values())
        self._clean_blocks = {number: count for number, count in self._clean_blocks.items() if number in counts}
        unsure = [
            number for number, count in counts.items() if number in blocks and self._clean_blocks.get(number) != count
        ]
        found: dict[int, frozenset[str]] = {}
        for number in islice(sorted(unsure, reverse=True), READS):
            if (block := ledger.get_block(number)) is not None:
                found[number] = frozenset(ref.name for ref in block.segments)
                self._clean_blocks[number] = len(found[number] - {""})
        return found

    def _named(
        self, ledger: Ledger, segments: Mapping[str, Level], prepares: frozenset[Level]
    ) -> dict[Level, frozenset[str]]:
        """What prepares name, of those levels that have other segments than when they were last looked at."""
        counts = Counter(segments.values())
        self._clean = {level: count for level, count in self._clean.items() if level in counts}
        unsure = [level for level, count in counts.items() if level in prepares and self._clean.get(level) != count]
        found: dict[Level, frozenset[str]] = {}
        for level in islice(sorted(unsure, reverse=True), READS):
            if (prepare := ledger.get_prepare(*level)) is not None:
                found[level] = frozenset(ref.name for ref in prepare.segments)
                self._clean[level] = len(found[level] - {""})
        return found

    def _job_wide(self) -> list[str]:
        routings = self._store.list("routing")[:-ROUTINGS_KEPT]
        streams = [f"{one.folder}/{of}" for one in streams_of(self._store) for of in ("block", "layout")]
        making = _making(self._store, ["", "owner", "routing", "graph", "snapshot", *streams])
        return [f"routing/{name}" for name in routings] + [name for name, age in making.items() if age > MAKING_SECONDS]


def _making(store: Store, folders: Iterable[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for folder in folders:
        found |= store.ages(folder, lambda name: bool(_MAKING.fullmatch(name)))
    return found
