"""The layers of the house: whoever stands on one imports only what stands below it. A break names the line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1] / "src" / "holdfast"

LAYERS = (
    ("testing",),
    ("cli",),
    ("__init__",),
    ("api",),
    ("driver",),
    ("spark", "launch"),
    ("plan", "master"),
    ("ring",),
    ("container",),
    ("recovery",),
    ("safety",),
    ("operators",),
    ("state",),
    ("wire",),
    ("log",),
    ("java", "faults", "ids", "interpreter", "invariants"),
    ("errors",),
)
"""From the top. Those beside one another do not know each other."""
SPEAK_SPARK = ("testing", "cli", "api", "driver", "spark", "launch", "plan")
"""Who may import pyspark or py4j."""

RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


class Import(NamedTuple):
    file: Path
    line: int
    module: str  # of ours, without the package's name
    imported: str  # a module's full name
    text: str

    @property
    def place(self) -> str:
        return f"{self.file.relative_to(ROOT.parents[1])}:{self.line}: {self.text}"


def imports(root: Path) -> Iterator[Import]:
    """Every import of every module, also inside functions and for types alone."""
    for file in sorted(root.rglob("*.py")):
        lines = file.read_text().splitlines()
        module = ".".join(file.relative_to(root).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}:{node.lineno}: say whose it is: {lines[node.lineno - 1].strip()}"
                names = [_module(root, node.module or "", alias.name) for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in dict.fromkeys(names):
                yield Import(file, node.lineno, module, name, lines[node.lineno - 1].strip())


def _module(root: Path, package: str, name: str) -> str:
    """What ``from package import name`` imports: a module of that package if there is one, else the package."""
    if package.partition(".")[0] != root.name:
        return package
    inside = root.joinpath(*package.split(".")[1:], name)
    return f"{package}.{name}" if inside.is_dir() or inside.with_suffix(".py").exists() else package


def room_of(module: str) -> str:
    return module.partition(".")[0]


def breaks(found: Import) -> str | None:
    """What is wrong with an import, if something is."""
    room, (top, *rest) = room_of(found.module), found.imported.split(".")
    if top in ("pyspark", "py4j"):
        return None if room in SPEAK_SPARK else f"'{room}' must not know of Spark"
    if top != "holdfast":
        return None
    below = rest[0] if rest else "__init__"
    if below == room or RANK[room] < RANK[below]:
        return None
    return f"'{room}' stands {'beside' if RANK[room] == RANK[below] else 'below'} '{below}'"


def test_every_room_has_its_layer() -> None:
    rooms = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms <= RANK.keys(), sorted(rooms - RANK.keys())


def test_nothing_imports_what_stands_above_it() -> None:
    wrong = [f"{found.place}  ({why})" for found in imports(ROOT) if (why := breaks(found)) is not None]
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_test_sees_a_break(tmp_path: Path) -> None:
    root = tmp_path / "holdfast"
    for file, text in {
        "log/store.py": "def look():\n    from holdfast.master import feed\n",
        "master/feed.py": "import pyspark\nfrom holdfast.log.store import look\n",
        "plan/graph.py": "from holdfast.master.feed import Feed\nimport pyspark\n",
    }.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)
    found = {(one.module, one.imported): why for one in imports(root) if (why := breaks(one)) is not None}
    assert found == {
        ("log.store", "holdfast.master.feed"): "'log' stands below 'master'",
        ("master.feed", "pyspark"): "'master' must not know of Spark",
        ("plan.graph", "holdfast.master.feed"): "'plan' stands beside 'master'",
    }
