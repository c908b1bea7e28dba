"""What is in the house: no module without one idea that can be told, and nothing in the wheel that only we need."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES = 400
WHY = "It is long because"
"""How the docstring of a longer one begins the sentence that says why."""


def test_a_long_module_says_why() -> None:
    package = ROOT / "src" / "holdfast"
    long = []
    for file in package.rglob("*.py"):
        text = file.read_text()
        said = " ".join((ast.get_docstring(ast.parse(text)) or "").split())
        if text.count("\n") > LINES and WHY not in said:
            long.append(str(file.relative_to(package)))
    assert not long, f"above {LINES} lines, and no word why: {sorted(long)}"


def test_a_wheel_has_the_package_and_nothing_else(tmp_path: Path) -> None:
    """No simulator, no demo, no benchmark, no test. Built from a copy: setuptools leaves its own files behind."""
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "stores"))
    arguments = ["wheel", "--no-build-isolation", "--no-deps", "--no-index", "--quiet", "-w", str(out), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, cwd=tmp_path, timeout=300)
    (wheel,) = out.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"holdfast"}
    modules = {name for name in names if name.endswith(".py")}
    shipped = ROOT / "src" / "holdfast"
    assert modules == {f"holdfast/{file.relative_to(shipped)}" for file in shipped.rglob("*.py")}
    rooms = {name.split("/")[1] for name in modules}
    assert not rooms & {"sim", "simulator", "demo", "cluster", "benchmarks", "tools", "tests"}
