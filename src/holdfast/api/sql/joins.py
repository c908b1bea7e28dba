"""Joins: of two streams by keys and time, of a stream with a stage by its key, with a table that is there already.

The rows of both sides get columns of unlike names, as few as the query needs. Where a side can go unmatched, its key is
kept beside the key of the join, since that has a value there which the side has not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from sqlglot import exp

from holdfast.api.keyed import StageStream
from holdfast.api.sql.scope import Column, Relation, Scope, Table, columns_in, conjuncts
from holdfast.api.sql.text import Node, Text, quoted
from holdfast.api.sql.times import Apart, as_span, take_bound
from holdfast.invariants import Impossible
from holdfast.operators.aggregate import StageSpec
from holdfast.plan.frames import DIFF
from holdfast.plan.graph import outputs

_BOUND = "ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL 1 HOUR AND a.ts + INTERVAL 1 HOUR"


@dataclass
class Conditions:
    """What ON says, taken apart."""

    keys: list[tuple[Node, Node]] = field(default_factory=list)
    """Equal on both sides."""
    apart: Apart = field(default_factory=Apart)
    bounds: list[Node] = field(default_factory=list)
    of_left: list[Node] = field(default_factory=list)
    of_right: list[Node] = field(default_factory=list)
    others: list[Node] = field(default_factory=list)


def joined(
    text: Text, left: Relation, node: exp.Join, right: Relation | Table, select: exp.Select, name: str | None
) -> Relation:
    """Both sides as one relation."""
    how = _how(text, node)
    if isinstance(right, Table):
        return _with_table(text, left, node, right, select, how)
    join = _Join(text, left, right, node, how)
    if join.by_key_of_stage():
        return join.lookup(select, name)
    return join.streams(select, name)


def _how(text: Text, node: exp.Join) -> str:
    side, kind = node.side.lower(), node.kind.lower()
    if node.method:
        raise text.wrong(node, f"there is no {node.method} join of streams.", "Write the keys: ON a.k = b.k.")
    if kind in ("semi", "anti", "cross", "straight") or side in ("semi", "anti"):
        raise text.wrong(node, f"there is no {kind or side} join of streams.", f"Use JOIN or LEFT JOIN, {_BOUND}.")
    if not node.args.get("on") and not node.args.get("using"):
        raise text.wrong(node, "a join of streams needs keys.", _BOUND)
    return side or "inner"


class _Join:
    def __init__(self, text: Text, left: Relation, right: Relation, node: exp.Join, how: str) -> None:
        if twice := {one.relation.lower() for one in left.columns} & {one.relation.lower() for one in right.columns}:
            raise text.wrong(
                node, f"both sides are called '{twice.pop()}'.", "Give one of them another name: clicks AS b."
            )
        self._text, self._node, self._how = text, node, how
        self._sides = [left, right]
        self._using: dict[str, str] = {}
        self._pair: dict[int, str] = {}
        """The event times that the bound is about."""
        self._found = self._conditions()
        if not self._found.keys:
            raise text.wrong(node, "a join of streams needs a column of each side that must be equal.", _BOUND)

    # --------------------------------------------------------------------------------------- what ON says

    def _conditions(self) -> Conditions:
        found = Conditions()
        for one in self._node.args.get("using") or []:
            name = one.name
            pair = []
            for side in self._sides:
                whose = next((column for column in side.columns if column.name.lower() == name.lower()), None)
                if whose is None:
                    raise self._text.wrong(one, f"'{name}' is not on both sides.", "Name a column that both have.")
                pair.append(exp.column(whose.name, table=whose.relation, quoted=True))
            self._using[name.lower()] = name
            found.keys.append((pair[0], pair[1]))
        for one in conjuncts(self._node.args.get("on")):
            self._take(one, found)
        return found

    def _take(self, one: Node, found: Conditions) -> None:
        whose = self._whose(one)
        if isinstance(one, exp.EQ):
            first, second = self._whose(one.this), self._whose(one.expression)
            if {first, second} == {frozenset({0}), frozenset({1})}:
                pair = (one.this, one.expression) if first == {0} else (one.expression, one.this)
                if not all(self._time_of(column) is not None for column in pair):
                    found.keys.append(pair)
                    return
        if self._of_one_pair(one) and take_bound(self._text, one, self._time_side, found.apart):
            found.bounds.append(one)
            self._pair |= self._times_in(one)
        elif whose == {0}:
            found.of_left.append(one)
        elif whose == {1}:
            found.of_right.append(one)
        else:
            found.others.append(one)

    def _whose(self, node: Node) -> frozenset[int]:
        return frozenset(self._side(column) for column in columns_in(node))

    def _side(self, node: exp.Column) -> int:
        scope = Scope(self._text, [*self._sides[0].columns, *self._sides[1].columns])
        column, _ = scope.find(node) if node.table else self._unqualified(node)
        return 0 if column in self._sides[0].columns else 1

    def _unqualified(self, node: exp.Column) -> tuple[Column, list[str]]:
        found = [one for side in self._sides for one in side.columns if one.name.lower() == node.name.lower()]
        if len(found) > 1:
            whose = " or ".join(f"{one.relation}.{one.name}" for one in found)
            raise self._text.wrong(node, f"'{node.name}' is on both sides.", f"Say which: {whose}.")
        return Scope(self._text, [*self._sides[0].columns, *self._sides[1].columns]).find(node)

    def _time_of(self, node: Node) -> str | None:
        if not isinstance(node, exp.Column):
            return None
        side = self._sides[self._side(node)]
        plain = Scope(self._text, side.columns).plain(node)
        return plain if plain in side.times else None

    def _times_in(self, node: Node) -> dict[int, str]:
        return {self._side(one): time for one in columns_in(node) if (time := self._time_of(one)) is not None}

    def _of_one_pair(self, node: Node) -> bool:
        """A join goes by one time of each side: a bound on others is a condition like any."""
        times = [(self._side(one), self._time_of(one)) for one in columns_in(node)]
        sides = {side: {time for at, time in times if at == side} for side in (0, 1)}
        return all(len(some) <= 1 for some in sides.values()) and all(
            side not in self._pair or time in (None, self._pair[side]) for side, time in times
        )

    def _time_side(self, node: exp.Column) -> int | None:
        return self._side(node) if self._time_of(node) is not None else None

    # ------------------------------------------------------------------------------------------- by lookup

    def by_key_of_stage(self) -> bool:
        """Rows of sources look up what a running aggregate holds for their key."""
        left, right = self._sides
        stream = right.stream
        if outputs(left.stream._node) or not isinstance(stream, StageStream) or self._how not in ("inner", "left"):
            return False
        plan = stream._job._planned(stream._stage).plan
        if type(plan.operator) is not StageSpec or self._found.bounds or self._found.of_right:
            return False
        scope = Scope(self._text, right.columns)
        asked = [scope.plain(one) for _, one in self._found.keys]
        return sorted(map(str, asked)) == sorted(key.name for key in plan.operator.keys)

    def lookup(self, select: exp.Select, name: str | None) -> Relation:
        left, right = self._sides
        stage = right.stream
        if not isinstance(stage, StageStream):
            raise Impossible("asked above")
        operator = stage._job._planned(stage._stage).plan.operator
        self._refuse_others(self._found.of_left + self._found.others if self._how != "inner" else [])
        by_name = {Scope(self._text, right.columns).plain(theirs): mine for mine, theirs in self._found.keys}
        ordered = [by_name[key.name] for key in operator.keys]
        held = [one for one in right.physical() if one not in {key.name for key in operator.keys}]
        left, keys = self._keyed(0, left, ordered, _wanted(left, select), held)
        stream = left.stream.key_by(*keys, name=name).lookup(stage, how=self._how)  # type: ignore[arg-type]
        by_key = dict(zip([key.name for key in operator.keys], keys, strict=True))
        theirs = [replace(one, physical=by_key.get(one.physical, one.physical)) for one in right.columns]
        if self._how == "left":  # where the stage has no such key, its key is null, and nobody here knows where that is
            theirs = [one for one, old in zip(theirs, right.columns, strict=True) if old.physical not in by_key]
        made = Relation(stream, (*left.columns, *theirs), {})
        return self._filtered(made, [*self._found.of_left, *self._found.others])

    # -------------------------------------------------------------------------------------- of two streams

    def streams(self, select: exp.Select, name: str | None) -> Relation:
        found, how = self._found, self._how
        low, high = found.apart.low, found.apart.high
        if found.bounds and (low is None or high is None):
            raise self._text.wrong(
                found.bounds[0], "the times of both sides are bounded in one direction only.", f"Bound both: {_BOUND}"
            )
        rest = [*found.others]
        if low is not None and high is not None and (low > 0 or high < 0):
            rest += found.bounds
        if how != "inner":
            self._refuse_others(rest)
            for side, mine in ((("left", "full"), found.of_left), (("right", "full"), found.of_right)):
                if how in side and mine:
                    self._refuse_others(mine)
        filtered = [
            self._filtered(side, mine) for side, mine in zip(self._sides, (found.of_left, found.of_right), strict=True)
        ]
        left, keys = self._keyed(0, filtered[0], [one for one, _ in found.keys], _wanted(filtered[0], select), ())
        taken = left.stream.columns
        right, others = self._keyed(1, filtered[1], [one for _, one in found.keys], _wanted(filtered[1], select), taken)
        bound = found.bounds and low is not None and high is not None
        if how != "inner" and self._using:
            raise self._text.wrong(self._node, "USING is for inner joins of streams.", f"Write {_BOUND}.")
        if how != "inner" and not bound:
            raise self._text.wrong(self._node, "an outer join of streams needs a bound in time.", _BOUND)
        timed = {}
        if bound:
            times = [self._bound_time(side, at) for at, side in enumerate((left, right))]
            late = max((left.times[times[0]], right.times[times[1]]), key=lambda one: float(one.removesuffix(" s")))
            within = as_span(max(0, -(low or 0))), as_span(max(0, high or 0))
            timed = {"time": (times[0], times[1]), "within": within, "lateness": late}
        stream = left.stream.key_by(*keys, name=name).join(right.stream.key_by(*others), how=how, **timed)  # type: ignore[arg-type]
        same = dict(zip(others, keys, strict=True))
        theirs = tuple(replace(one, physical=same.get(one.physical, one.physical)) for one in right.columns)
        columns = [*left.columns, *theirs]
        if self._using:  # once, and first
            once = [one for one in left.columns if one.name.lower() in self._using]
            columns = once + [one for one in columns if one.name.lower() not in self._using]
        times_now = dict.fromkeys([*left.times, *right.times], "0 s") if bound else {}
        made = Relation(stream, tuple(columns), {one: late for one, late in times_now.items() if one in stream.columns})
        return self._filtered(made, rest)

    def _bound_time(self, side: Relation, at: int) -> str:
        """The time that the bounds speak of, as the side calls it now."""
        for condition in self._found.bounds:
            for node in columns_in(condition):
                if self._side(node) == at:
                    plain = Scope(self._text, side.columns).plain(node)
                    if plain is not None and plain in side.times:
                        return plain
        raise self._text.wrong(self._node, "the bound names no event time.", _BOUND)

    def _keyed(
        self, at: int, side: Relation, keys: list[Node], wanted: set[str], taken: Collection[str]
    ) -> tuple[Relation, list[str]]:
        """A side with the columns that are needed, and the names of its keys."""
        scope = Scope(self._text, side.columns)
        unmatched = self._how == "full" or self._how == ("right" if at == 0 else "left")
        names = []
        made: list[Column] = []
        for number, one in enumerate(keys):
            plain = scope.plain(one)
            if plain is None or (unmatched and plain in wanted) or plain in names:
                name = f"key{number + 1}"
                while name in {*side.stream.columns, *taken}:
                    name += "_"
                said = scope.said(one) if plain is None else quoted(plain)
                side = replace(side, stream=side.stream.with_column(name, said))
                made.append(Column("", "", name))
                names.append(name)
            else:
                names.append(plain)
        side = replace(side, columns=(*side.columns, *made))
        times = {self._pair[at]} if at in self._pair else set()
        narrowed = side.narrowed({*wanted, *names, *times}, taken)
        called = dict(zip([one.physical for one in side.columns if one.physical in {*wanted, *names, *times}],
                          narrowed.physical(), strict=True))  # fmt: skip
        kept = tuple(one for one in narrowed.columns if one.name)
        return replace(narrowed, columns=kept), [called[name] for name in names]

    def _filtered(self, rows: Relation, conditions: list[Node]) -> Relation:
        if not conditions:
            return rows
        scope = Scope(self._text, rows.columns)
        said = " AND ".join(f"({scope.said(one)})" for one in conditions)
        return replace(rows, stream=rows.stream.where(said))

    def _refuse_others(self, conditions: list[Node]) -> None:
        if conditions:
            raise self._text.wrong(
                conditions[0],
                f"a {self._how} join of streams goes by equal keys and a bound in time alone.",
                "Filter the side in a subquery before, or the pairs with WHERE behind an inner join.",
            )


def _wanted(side: Relation, select: exp.Select) -> set[str]:
    """The columns of a side that a query names, all where it has a star."""
    for one in select.expressions:
        inner = one.this if isinstance(one, exp.Alias) else one
        if inner.is_star and not (isinstance(inner, exp.Column) and inner.table):
            return set(side.physical())
    found = set()
    for join in select.args.get("joins") or []:
        names = {one.name.lower() for one in join.args.get("using") or []}
        found |= {one.physical for one in side.columns if one.name.lower() in names}
    for node in columns_in(select):
        parts = [part.name.lower() for part in node.parts]
        for one in side.columns:
            whole = isinstance(node.this, exp.Star) and one.relation.lower() == node.table.lower()
            named = (one.name.lower() == parts[0]) or (
                len(parts) > 1 and one.relation.lower() == parts[0] and one.name.lower() == parts[1]
            )
            if whole or named:
                found.add(one.physical)
    return found


# ------------------------------------------------------------------------------------- with a table that is there


def _with_table(text: Text, left: Relation, node: exp.Join, right: Table, select: exp.Select, how: str) -> Relation:
    """Spark's own join of a stream with a table, in every epoch with the table as it is then."""
    if how not in ("inner", "left"):
        raise text.wrong(
            node, f"a stream cannot be the inner side of a {how} join with a table.", "Use JOIN or LEFT JOIN."
        )
    taken = {name.lower() for name in left.stream.columns}
    called = {}
    for name in right.columns:
        new = name
        while new.lower() in taken:
            new = f"{right.alias}_{new}"
        called[name] = new
        taken.add(new.lower())
    theirs = tuple(Column(right.alias, name, new) for name, new in called.items())
    scope = Scope(text, [*left.columns, *theirs])
    conditions = [scope.said(one) for one in conjuncts(node.args.get("on"))]
    for one in node.args.get("using") or []:
        mine = Scope(text, left.columns).find(exp.column(one.name, quoted=True))[0].physical
        its = next((new for name, new in called.items() if name.lower() == one.name.lower()), None)
        if its is None:
            raise text.wrong(one, f"'{one.name}' is not on both sides.", "Name a column that both have.")
        conditions.append(f"{quoted(mine)} = {quoted(its)}")
    condition = " AND ".join(f"({one})" for one in conditions)
    wanted = _wanted(Relation(left.stream, theirs), select)
    kept = tuple(one for one in theirs if one.physical in wanted)
    table = right.name

    def with_table(frame: DataFrame) -> DataFrame:
        rows = frame.sparkSession.table(table).select(*[F.col(quoted(name)).alias(new) for name, new in called.items()])
        hidden = [DIFF] if DIFF in frame.columns else []
        mine = [name for name in frame.columns if name != DIFF]
        return frame.join(rows, F.expr(condition), how).select(
            *[F.col(quoted(name)) for name in [*mine, *[one.physical for one in kept], *hidden]]
        )

    with_table.__name__ = f"join_{right.name}"
    return Relation(left.stream.transform(with_table), (*left.columns, *kept), left.times)
