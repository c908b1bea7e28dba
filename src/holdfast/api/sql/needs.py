"""Whether SQL can be had: it is an extra."""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.errors import PlanError


def sqlglot_is_there() -> None:
    try:
        there = find_spec("sqlglot") is not None
    except ValueError:  # it is known to be missing
        there = False
    if not there:
        raise PlanError(
            "SQL needs sqlglot, which is not installed.",
            safe="Nothing was started.",
            todo="pip install 'holdfast[sql]'",
        )
