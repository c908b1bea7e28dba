"""Vertices on real containers: Figure 7's program of ELF, its trees when somebody dies, and what goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from container_kit import World, until
from micro_promotion import MicroPromotion, SalePrediction, oracle
from ring_kit import settled, terms
from vertex_kit import App

DEEP = {"leaves": 4, "bits": 1}
"""Containers that know four others each: trees have inner vertices."""


def right(results: dict[int, Any]) -> None:
    """Every result is the oracle's over those that are in it, each once."""
    for interval, (products, of) in results.items():
        assert len(set(of)) == len(of), f"somebody counts twice in {interval}: {of}"
        assert products == oracle(of, interval)


def test_figure_7_on_real_containers(tmp_path: Path) -> None:
    """Nine processes, a tree with inner vertices. The root dies, then an inner vertex: results go on, without them."""
    world = World(tmp_path, 9, processes=True, ring=terms(**DEEP))
    try:
        names = list(world.clients)
        app = App(world, MicroPromotion, "micro-promotion", "ann").start()
        app.whole()
        told = app.status()
        (root,) = [name for name, one in told.items() if one.root]
        inner = [name for name, one in told.items() if one.children and not one.root]
        assert inner, told
        assert app.root("c0") == root

        def all_in(living: list[str], since: int = 0) -> bool:
            results = app.ask("results", app.root(living[0]))
            right(results)
            whole = [at for at, (_, of) in results.items() if at > since and of == tuple(sorted(living))]
            return len(whole) >= 3

        until(lambda: all_in(names), 30)
        last = max(app.ask("results", root))
        world.kill(root)
        living = [name for name in names if name != root]
        app.whole(*living)
        second = app.root(living[0])
        assert second != root
        until(lambda: all_in(living, last), 30)
        last = max(app.ask("results", second))
        told = app.status(*living)
        inner = [name for name, one in told.items() if one.children and not one.root] or [
            name for name in living if name != second
        ]
        world.kill(inner[0])
        living = [name for name in living if name != inner[0]]
        app.whole(*living)
        until(lambda: all_in(living, last), 30)
    finally:
        world.close()


def test_one_application_asks_another(tmp_path: Path) -> None:
    world = World(tmp_path, 3, ring=terms())
    try:
        settled(world, "c0", "c1", "c2")
        promotion = App(world, MicroPromotion, "micro-promotion", most=4).start()
        prediction = App(world, SalePrediction, "sale-prediction", other="micro-promotion").start()
        prediction.whole()
        until(lambda: prediction.ask("?", prediction.root("c1")) is not None, 20)
        answer = prediction.ask("?", prediction.root("c1"))
        results = promotion.ask("results", promotion.root("c0"))
        right(results)
        assert results[answer.interval][0] == answer.products
        prediction.stop()
        promotion.stop()
    finally:
        world.close()
