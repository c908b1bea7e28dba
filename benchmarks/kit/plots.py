"""Plots: one PNG a benchmark in ``results``, whose title is the question it answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

RESULTS = Path(__file__).parents[1] / "results"
TWO_CORES = "Measured on 2 cores."


@contextmanager
def plot(
    name: str, question: str, paper: str, note: str = "", panels: int = 1, quick: bool = False
) -> Iterator[list[Axes]]:
    """Axes to draw on, side by side; saved when left. ``paper`` names the figure that asks the same.

    ``note`` says what the two cores of the machine cut off. A quick run does not touch the full one's picture.
    """
    small = "  ·  ".join(part for part in (f"cf. {paper}", TWO_CORES, note, "quick size" if quick else "") if part)
    with _picture(name, question, small, (5.2 * panels + 1.2, 4.4), 0.04, panels, quick) as axes:
        yield axes


@contextmanager
def beside_paper(
    name: str, question: str, statement: str, said: str, quick: bool, panels: int = 1
) -> Iterator[list[Axes]]:
    """A picture of the simulator's; under it what the paper says and whether this agrees."""
    small = f"{statement}\n{said}\nSimulated, one core.{' Quick size.' if quick else ''}"
    size = (7.2 if panels == 1 else 4.2 * panels, 5.0)
    with _picture(name, question, small, size, 0.19, panels, quick) as axes:
        yield axes


@contextmanager
def _picture(
    name: str, question: str, small: str, size: tuple[float, float], bottom: float, panels: int, quick: bool
) -> Iterator[list[Axes]]:
    """``bottom`` is the share of the height that the small print takes."""
    figure, axes = pyplot.subplots(1, panels, figsize=size, squeeze=False)
    try:
        yield list(axes[0])
        for axis in axes[0]:
            axis.grid(alpha=0.3)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(frameon=False)
        figure.suptitle(question, fontweight="bold")
        figure.text(0.5, 0.01, small, ha="center", va="bottom", fontsize=8, color="0.35", wrap=True)
        figure.tight_layout(rect=(0, bottom, 1, 1))
        RESULTS.mkdir(exist_ok=True)
        figure.savefig(RESULTS / f"{name}{'-quick' if quick else ''}.png", dpi=120)
    finally:
        pyplot.close(figure)


def millions(axis: Axes, keys: list[int]) -> None:
    """Labels a logarithmic axis of keys."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(keys, [f"{number / 1e6:g} M" for number in keys])
    axis.minorticks_off()
    axis.set_xlabel("keys of state")


def verdict(agrees: bool, why: str) -> str:
    return f"{'Ours agrees' if agrees else 'Ours does not agree everywhere'}: {why}"
