"""Random graphs of stages, and an oracle that runs them in plain Python, epoch by epoch.

All streams have the same columns, so that any stage fits behind any other: ``k``, ``g``, ``v`` and, where rows are
final, a time ``ts``. *Final* streams only ever add rows; *tables* are what a stage that updates its rows holds. The
oracle keeps no changelogs: a stage over a table is computed anew from what the table is after the epoch.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

import holdfast as hf

SCHEMA = "k string, g int, v bigint, ts timestamp"
SOURCES = ("one", "two")
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)  # a multiple of every window there is
FINAL, TABLE = ("window", "distinct", "process", "join"), ("sums", "groups", "best", "pairs")

Row = tuple[str, int, int, int]  # k, g, v and seconds since START
Held = tuple[str, int, int]  # k, g, v


@dataclass(frozen=True)
class Choice:
    """One stage. What it reads is chosen among the streams that fit, by numbers modulo how many there are."""

    kind: str
    reads: int = 0
    and_: int = 0  # the other side of a join
    size: int = 4  # seconds: of a window, of a bound
    lateness: int = 0
    where: bool = False
    union: bool = False


@st.composite
def graphs(draw: st.DrawFn) -> list[Choice]:
    """Two or three levels as a rule, four stages at most."""
    number = st.integers(0, 5)
    return draw(
        st.lists(
            st.builds(
                Choice,
                kind=st.sampled_from(FINAL + TABLE),
                reads=number,
                and_=number,
                size=st.sampled_from([2, 4, 6]),
                lateness=st.sampled_from([0, 3]),
                where=st.booleans(),
                union=st.booleans(),
            ),
            min_size=1,
            max_size=4,
        )
    )


@st.composite
def epochs(draw: st.DrawFn, most: int = 5) -> list[dict[str, list[Row]]]:
    """Rows of both sources, in disorder; some are far behind."""

    def rows(number: int) -> st.SearchStrategy[list[Row]]:
        second = st.integers(0, 9).map(lambda s: s + 4 * number) | st.integers(0, 30)
        return st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(-3, 9), second), max_size=6)

    return [{name: draw(rows(number)) for name in SOURCES} for number in range(draw(st.integers(1, most)))]


def random_graph(seed: int, most: int = 30) -> tuple[list[Choice], list[dict[str, list[Row]]]]:
    """A graph of four stages and five epochs of rows, by a seed: for where a search would take too long."""
    draw = random.Random(seed)

    def row(number: int) -> Row:
        second = max(0, 4 * number + draw.randrange(-9, 9))
        return draw.choice("abcde"), draw.randrange(2), draw.randrange(-3, 10), second

    kinds = [draw.choice(FINAL), *draw.choices(FINAL + TABLE, k=3)]
    chosen = [
        Choice(
            kind,
            draw.randrange(3),
            draw.randrange(3),
            draw.choice([2, 4, 6]),
            draw.choice([0, 3]),
            draw.random() < 0.4,
            draw.random() < 0.3,
        )
        for kind in kinds
    ]
    given = [{name: [row(number) for _ in range(draw.randrange(most))] for name in SOURCES} for number in range(5)]
    return chosen, given


# --- the graph, drawn with holdfast's verbs --------------------------------------------------------------------------


class Sum:
    """What ``process`` runs: the running sum of a key."""

    total = hf.states.value("bigint", default=0)

    def rows(self, key: str, rows: Sequence[Mapping[str, Any]], context: Any) -> Iterable[dict[str, Any]]:
        context.state.total += sum(row["v"] for row in rows)
        yield {"k": key, "g": len(rows) % 4, "v": context.state.total, "ts": max(row["ts"] for row in rows)}


@dataclass
class Drawn:
    """The streams of a graph by number, the two sources first; and the stages that tables come from."""

    streams: list[hf.Stream]
    stages: list[hf.StageStream | None] = field(default_factory=lambda: [None, None])


def draw(one: hf.Stream, two: hf.Stream, chosen: Sequence[Choice]) -> Drawn:
    drawn = Drawn([one, two])
    for number, (choice, reads) in enumerate(wired(chosen)):
        streams = [drawn.streams[at] for at in reads]
        rows = streams[0]
        if choice.kind not in ("join", "pairs") and len(streams) == 2:
            rows = rows.union(streams[1])
        if choice.kind == "distinct":
            rows = rows.with_column("at", "ts")
        if choice.where:
            rows = rows.where("v % 3 <> 0")
        name, size, lateness = f"s{number}", f"{choice.size} s", f"{choice.lateness} s"
        match choice.kind:
            case "window":
                window = hf.sliding(size, every=f"{choice.size // 2} s") if choice.and_ % 2 else hf.tumbling(size)
                stage = (
                    rows.key_by("k", name=name)
                    .window(window, time="ts", lateness=lateness)
                    .agg(n=hf.count(), v=hf.sum("v"))
                )
                put = stage.with_column("g", "cast(n % 4 AS int)").with_column("ts", "window_end")
            case "distinct":
                stage = rows.key_by("k", "g", "v", "ts", name=name).distinct(time="at", within=size, lateness=lateness)
                put = stage
            case "process":
                stage = rows.key_by("k", name=name).process(Sum, SCHEMA, time="ts", lateness=lateness)
                put = stage
            case "join":
                right = streams[1].with_column("w", "v").with_column("us", "ts").select("k", "w", "us")
                stage = rows.key_by("k", name=name).join(
                    right.key_by("k"), time=("ts", "us"), within=size, lateness=lateness
                )
                put = stage.with_column("v", "v + w")
            case "sums":
                stage = rows.key_by("k", name=name).agg(n=hf.count(), v=hf.sum("v"))
                put = stage.with_column("g", "cast(n % 4 AS int)")
            case "groups":
                stage = rows.key_by("g", name=name).agg(n=hf.count(), v=hf.sum("v"))
                put = stage.with_column("k", "concat('g', cast(n % 2 AS string))")
            case "best":
                stage = rows.select("k", "g", "v").top_k(2, by=["v", ("k", "asc")], per="g", name=name)
                put = stage
            case _:
                right = streams[1].with_column("w", "v").select("k", "w")
                stage = rows.select("k", "g", "v").key_by("k", name=name).join(right.key_by("k"))
                put = stage.with_column("v", "v + w")
        columns = ("k", "g", "v", "ts") if choice.kind in FINAL else ("k", "g", "v")
        drawn.streams.append(put.select(*columns))
        drawn.stages.append(stage)
    return drawn


def wired(chosen: Sequence[Choice]) -> list[tuple[Choice, list[int]]]:
    """Each choice with the numbers of the streams it reads, the newest first: most graphs are deep."""
    kinds, found = ["source", "source"], []
    for choice in chosen:
        newest = range(len(kinds) - 1, -1, -1)
        final = [at for at in newest if kinds[at] not in TABLE]
        tables = [at for at in newest if kinds[at] in TABLE]
        fit = final if choice.kind in FINAL else tables if choice.kind == "pairs" else list(newest)
        if not fit:
            continue  # a join of tables, and there is none
        reads = [fit[choice.reads % len(fit)]]
        if choice.kind in ("join", "pairs"):
            reads.append(fit[choice.and_ % len(fit)])
        elif choice.union and kinds[reads[0]] not in TABLE:
            alike = [at for at in final if (at < 2) == (reads[0] < 2)]  # sources with sources, stages with stages
            reads.append(alike[choice.and_ % len(alike)])
        found.append((choice, reads))
        kinds.append(choice.kind)
    return found


# --- the oracle -------------------------------------------------------------------------------------------------------


class Node:
    """A stage: ``out`` is what the epoch adds, or for a table what it is."""

    def __init__(self, choice: Choice, reads: Sequence[Node], latest: Mapping[str, int]) -> None:
        self.choice, self.reads, self._latest = choice, reads, latest
        self.out: list[Any] = []
        self.mark: int | None = None
        self.rows: list[Any] = []  # all there ever were, or those that wait
        self.seen: dict[Any, int] = {}
        self.sums: dict[Any, tuple[int, int]] = defaultdict(lambda: (0, 0))

    @property
    def reached(self) -> int | None:
        return self.mark

    @property
    def promised(self) -> int | None:
        """Before which no row will come any more: of a pair the left row may be as old as the bound lets it be."""
        reached = self.reached
        return reached if reached is None or self.choice.kind != "join" else reached - self.choice.size

    def epoch(self) -> None:
        late, kind = self.mark, self.choice.kind
        parts = [one.promised for one in self.reads]
        if kind in FINAL and None not in parts:
            now = min(parts) - self.choice.lateness  # type: ignore[type-var,operator]
            self.mark = now if self.mark is None else max(now, self.mark)
        given = [self._wanted(one.out) for one in self.reads]
        if kind not in ("join", "pairs"):
            given = [[row for rows in given for row in rows]]
        elif self.choice.where:
            given[1] = list(self.reads[1].out)
        self.out = getattr(self, f"_{kind}")(*given, -(10**9) if late is None else late)

    def _wanted(self, rows: Iterable[Any]) -> list[Any]:
        return [row for row in rows if not self.choice.where or row[2] % 3]

    @property
    def _now(self) -> int:
        return -(10**9) if self.mark is None else self.mark

    # --- final

    def _window(self, rows: Sequence[Row], late: int) -> list[Row]:
        size = self.choice.size
        every = size // 2 if self.choice.and_ % 2 else size
        for k, _, v, ts in rows:
            for start in range(ts // every * every, ts - size, -every):
                if start + size > late:
                    n, total = self.sums[k, start]
                    self.sums[k, start] = (n + 1, total + v)
        ended = [key for key in self.sums if key[1] + size <= self._now]
        found = {key: self.sums.pop(key) for key in ended}
        return [(k, n % 4, total, start + size) for (k, start), (n, total) in found.items()]

    def _distinct(self, rows: Sequence[Row], late: int) -> list[Row]:
        out = []
        for row in rows:
            if row[3] >= late and row not in self.seen:
                self.seen[row] = row[3]
                out.append(row)
        self.seen = {row: ts for row, ts in self.seen.items() if self._now <= ts + self.choice.size}
        return out

    def _process(self, rows: Sequence[Row], late: int) -> list[Row]:
        by_key: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_key[row[0]].append(row)
        for k, mine in by_key.items():
            self.sums[k] = (0, self.sums[k][1] + sum(row[2] for row in mine))
        return [(k, len(mine) % 4, self.sums[k][1], max(row[3] for row in mine)) for k, mine in by_key.items()]

    def _join(self, left: Sequence[Row], right: Sequence[Row], late: int) -> list[Row]:
        fresh = [(0, row) for row in left if row[3] >= late] + [(1, row) for row in right if row[3] >= late]
        out = []
        for side, row in fresh:
            for other_side, other in self.rows:
                if side != other_side and row[0] == other[0] and abs(row[3] - other[3]) <= self.choice.size:
                    mine = other if side else row
                    out.append((row[0], mine[1], row[2] + other[2], mine[3]))
            self.rows.append((side, row))
        self.rows = [(side, row) for side, row in self.rows if self._now <= row[3] + self.choice.size]
        return out

    # --- tables

    def _all(self, rows: Sequence[Any]) -> list[Held]:
        """What the input is by now: all rows of a final stream, or the table as it is."""
        if any(one.is_table for one in self.reads):
            return list(rows)
        self.rows += [row[:3] for row in rows]
        return self.rows

    @property
    def is_table(self) -> bool:
        return self.choice.kind in TABLE

    def _sums(self, rows: Sequence[Any], late: int) -> list[Held]:
        found = _summed(self._all(rows), lambda row: row[0])
        return [(k, n % 4, total) for k, (n, total) in found.items()]

    def _groups(self, rows: Sequence[Any], late: int) -> list[Held]:
        found = _summed(self._all(rows), lambda row: row[1])
        return [(f"g{n % 2}", g, total) for g, (n, total) in found.items()]

    def _best(self, rows: Sequence[Any], late: int) -> list[Held]:
        by_group: dict[int, list[Held]] = defaultdict(list)
        for row in self._all(rows):
            by_group[row[1]].append(row)
        return [row for mine in by_group.values() for row in sorted(mine, key=lambda row: (-row[2], row[0]))[:2]]

    def _pairs(self, left: Sequence[Held], right: Sequence[Held], late: int) -> list[Held]:
        return [(one[0], one[1], one[2] + two[2]) for one in left for two in right if one[0] == two[0]]


class SourceNode(Node):
    def __init__(self, name: str, latest: Mapping[str, int]) -> None:
        super().__init__(Choice("source"), (), latest)
        self.name = name

    @property
    def reached(self) -> int | None:
        return self._latest.get(self.name)


def _summed(rows: Iterable[Held], key: Callable[[Held], Any]) -> dict[Any, tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in rows:
        n, total = found[key(row)]
        found[key(row)] = (n + 1, total + row[2])
    return found


class Oracle:
    """The whole graph. ``epoch`` gives what each stream, by number, has after it: a table, or the rows it added."""

    def __init__(self, chosen: Sequence[Choice]) -> None:
        self.latest: dict[str, int] = {}
        self.nodes: list[Node] = [SourceNode(name, self.latest) for name in SOURCES]
        for choice, reads in wired(chosen):
            self.nodes.append(Node(choice, [self.nodes[at] for at in reads], self.latest))

    def epoch(self, given: Mapping[str, Sequence[Row]]) -> list[Counter[Any]]:
        for name, node in zip(SOURCES, self.nodes, strict=False):
            node.out = list(given[name])
            for row in given[name]:
                self.latest[name] = max(row[3], self.latest.get(name, row[3]))
        for node in self.nodes[len(SOURCES) :]:
            node.epoch()
        return [Counter(node.out) for node in self.nodes]


def as_dicts(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [{"k": k, "g": g, "v": v, "ts": START + dt.timedelta(seconds=ts)} for k, g, v, ts in rows]


def counted(rows: Iterable[Mapping[str, Any]]) -> Counter[Any]:
    """Rows of holdfast's as the oracle has them."""
    found: Counter[Any] = Counter()
    for row in rows:
        held = (row["k"], row["g"], row["v"])
        found[(*held, round((row["ts"] - START).total_seconds())) if "ts" in row else held] += 1
    return found


def held(rows: Iterable[Mapping[str, Any]], kind: str) -> Counter[Any]:
    """What a table's stage holds, as the oracle has it."""
    match kind:
        case "sums":
            return Counter((row["k"], row["n"] % 4, row["v"]) for row in rows)
        case "groups":
            return Counter((f"g{row['n'] % 2}", row["g"], row["v"]) for row in rows)
    return Counter((row["k"], row["g"], row["v"]) for row in rows)
