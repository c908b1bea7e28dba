"""A kind of operator is known in its own module: nobody else asks which kind a spec is."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

import holdfast
from holdfast import operators
from holdfast.operators.kinds import KINDS
from holdfast.operators.spec import Spec

ROOT = Path(holdfast.__file__).parent
BASES = ("Spec", "AggregatingSpec")


@cache
def every_kind() -> frozenset[type[Spec]]:
    """All classes of specs that there are, however deep."""
    for module in pkgutil.walk_packages(operators.__path__, "holdfast.operators."):
        import_module(module.name)
    found = [Spec]
    for one in found:  # grows while it is walked
        found += one.__subclasses__()
    return frozenset(one for one in found if one.__name__ not in BASES)


def test_every_kind_is_registered_once() -> None:
    assert set(KINDS.values()) == every_kind()
    assert all(name == spec.kind for name, spec in KINDS.items())


def test_what_a_kind_frees_are_fields_of_its_spec() -> None:
    for spec in KINDS.values():
        names = {field.name for field in fields(spec)}  # type: ignore[arg-type]  # every kind is a dataclass
        assert spec.free <= names, spec
        assert "build" in vars(spec) or any("build" in vars(base) for base in spec.__mro__[1:-2]), spec


def names_of_kinds(node: ast.AST) -> Iterator[str]:
    """The kinds that are told apart there: ``isinstance(…, XSpec)``, ``case XSpec()``, ``type(…) is XSpec``."""
    kinds = {spec.__name__ for spec in every_kind()} | {*BASES}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
        asked: list[ast.AST] = list(node.args[1:])
    elif isinstance(node, ast.MatchClass):
        asked = [node.cls]
    elif isinstance(node, ast.Compare) and any(isinstance(one, ast.Is | ast.Eq | ast.In) for one in node.ops):
        asked = [*node.comparators]
    else:
        return
    for one in (one for each in asked for one in ast.walk(each)):
        name = one.id if isinstance(one, ast.Name) else one.attr if isinstance(one, ast.Attribute) else ""
        if name in kinds:
            yield name


def asked_in(text: str, path: str) -> list[str]:
    return [
        f"{path}:{node.lineno}: {text.splitlines()[node.lineno - 1].strip()}"  # type: ignore[attr-defined]
        for node in ast.walk(ast.parse(text))
        if any(names_of_kinds(node))
    ]


def test_nobody_outside_asks_for_a_kind() -> None:
    outside = [path for path in sorted(ROOT.rglob("*.py")) if path.parts[len(ROOT.parts)] != "operators"]
    assert len(outside) > 100
    found = [line for path in outside for line in asked_in(path.read_text(), str(path.relative_to(ROOT)))]
    assert not found, "\n".join(found)


def test_the_test_sees_them() -> None:
    lines = ["isinstance(spec, WindowSpec)", "isinstance(spec, window.JoinSpec | int)", "type(spec) is TopKSpec"]
    lines += ["match spec:\n    case DistinctSpec():\n        pass"]
    for line in lines:
        assert asked_in(f"if True:\n    {line}" if "match" not in line else line, "x.py"), line
    assert not asked_in("isinstance(spec, StateSpec)\nWindowSpec(a is b)", "x.py")
