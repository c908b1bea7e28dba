"""The demo: its parts, then the whole of it in miniature, with a container killed half way."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from holdfast.api.status import ContainerStatus, Status
from holdfast.driver.history import Ongoing, RunEvent
from holdfast.master.autoscale import Advice
from tools import demo
from tools.demo_view import View

STATE = {"product": ["a", "b"], "clicks": [1, 2], "cents": [10, 20], "dearest": [10, 15]}


def test_equal_ignores_the_order_of_rows_and_nothing_else() -> None:
    found = pa.table(STATE)
    assert demo.equal(found, found.take([1, 0]))
    assert not demo.equal(found, found.slice(0, 1))
    for column in STATE:
        wrong = pa.table({**STATE, column: STATE[column][::-1]})
        assert not demo.equal(found, wrong), column


def test_top_products_are_those_with_most_clicks() -> None:
    assert demo.top_products(pa.table(STATE), 1) == [("b", 2, 20)]
    assert demo.top_products(pa.table(STATE).slice(0, 0)) == []


def test_the_clicks_are_all_there_and_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "FILES", 3)
    monkeypatch.setattr(demo, "SECONDS_PER_FILE", 0.0)
    written = []
    for name in ("one", "other"):
        clicks = demo.Clicks(tmp_path / name, 1000)
        clicks.start()
        assert clicks.done.wait(120)
        clicks.stop()
        assert clicks.failure is None
        written.append(pq.read_table(tmp_path / name))
    assert written[0].num_rows == 1000
    assert written[0].equals(written[1])
    assert not any(thread.name == "clicks" for thread in threading.enumerate())


def test_stopping_the_clicks_does_not_wait_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SECONDS_PER_FILE", 3600.0)
    clicks = demo.Clicks(tmp_path / "clicks", 1000)
    clicks.start()
    clicks.stop()
    assert len(list((tmp_path / "clicks").iterdir())) <= 1


@pytest.mark.parametrize("terminal", [True, False])
def test_the_view_has_the_figures_on_a_terminal_and_off(terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    container = ContainerStatus("c0", True, 128, 0, 1, 42, 1000, "here", False)
    moving = Ongoing("rescale", "from 1 to 2 containers", "8 in copy", 16, 4, 2_000_000, 0.5, 1.5)
    told = (RunEvent("copied", "every second", 0.0), RunEvent("healed", "8 slices lost their container", 0.0, 0.026))
    figures = ("demo", 3, "idle", 500, 100, 0.25, {}, (container,), (), told, (moving,), "4 of 16 copies", False)
    status = Status(*figures, Advice(2, "2 containers are enough"))
    with View(console, 1000) as view:
        view.say("Killed container c1.")
        view.show(status, [("amber lamp 1", 7, 1234)])
    shown = out.getvalue()
    texts = ["epoch 3", "500 of 1,000 rows", "250 ms", "c0", "128", "amber lamp 1", "Killed container c1."]
    texts += ["4 of 16 slices, 2.0 MB", "about 1.5 s left", "healed: 8 slices"]
    for text in texts:
        assert text in shown
    assert "every second" not in shown, "what goes on all the time is no news"
    printed = str(status)
    for text in ("c0 on here: 128 slices", "4 of 16 copies", "4 of 16 slices", "2 containers are enough", "healed"):
        assert text in printed


@pytest.mark.parametrize("wrong", [["--rows", "0"], ["--containers", "x"], ["dance"]])
def test_the_command_refuses_what_makes_no_sense(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        demo.main(wrong)
    assert caught.value.code == 2
    assert "usage: ./dev demo" in capsys.readouterr().err


@pytest.mark.drivers
@pytest.mark.spark
def test_the_whole_demo_ends_equal_and_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, tools.demo as demo\n"
        "demo.FILES, demo.SECONDS_PER_FILE = 12, 0.1\n"
        "sys.exit(demo.main(['--rows', '30000', '--containers', '2']))\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Killed container" in done.stdout
    assert "Equal: " in done.stdout
    assert "30,000 clicks" in done.stdout
    assert not list(tmp_path.glob("holdfast-demo-*"))
