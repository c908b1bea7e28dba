"""Vertices on real containers: Figure 7's program of ELF, its trees when somebody dies, and what goes wrong."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from container_kit import World, ring_at, until
from figure_seven import MicroPromotion, SalePrediction, oracle
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from ring_kit import neighbours, settled, terms
from vertex_kit import App

from holdfast.errors import ContainerError, FunctionError, VertexError
from holdfast.ring import Vertex
from holdfast.ring.application import MOST_WAITING

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

        until(lambda: all_in(names))
        last = max(app.ask("results", root))
        world.kill(root)
        living = [name for name in names if name != root]
        app.whole(*living)
        second = app.root(living[0])
        assert second != root
        until(lambda: all_in(living, last))
        last = max(app.ask("results", second))
        told = app.status(*living)
        inner = [name for name, one in told.items() if one.children and not one.root] or [
            name for name in living if name != second
        ]
        world.kill(inner[0])
        living = [name for name in living if name != inner[0]]
        app.whole(*living)
        until(lambda: all_in(living, last))
    finally:
        world.close()


def test_one_application_asks_another(tmp_path: Path) -> None:
    world = World(tmp_path, 3, ring=terms())
    try:
        settled(world, "c0", "c1", "c2")
        promotion = App(world, MicroPromotion, "micro-promotion", most=4).start()
        prediction = App(world, SalePrediction, "sale-prediction", other="micro-promotion").start()
        prediction.whole()
        until(lambda: prediction.ask("?", prediction.root("c1")) is not None)
        answer = prediction.ask("?", prediction.root("c1"))
        results = promotion.ask("results", promotion.root("c0"))
        right(results)
        assert results[answer.interval][0] == answer.products
        prediction.stop()
        promotion.stop()
    finally:
        world.close()


# ----------------------------------------------------------------------------------------- threads, errors, the end


class Probe(Vertex):
    """Does what it is told."""

    def __init__(self, every: float | None = None, fails: str = "") -> None:
        self.every = every
        self.fails = fails
        self.timers = 0
        self.heard: list[Any] = []
        self.threads: set[int] = {threading.get_ident()}
        if fails == "__init__":
            raise ValueError("this one cannot be made")

    def on_start(self) -> None:
        super().on_start()
        self.threads.add(threading.get_ident())
        if self.fails == "on_start":
            raise ValueError("this one cannot start")

    def on_timer(self) -> None:
        self.timers += 1
        self.threads.add(threading.get_ident())
        if self.fails == "on_timer":
            raise ValueError(f"timer {self.timers}")

    def on_recv(self, sender: str | None, message: Any) -> None:
        self.threads.add(threading.get_ident())
        if callable(message):
            message(self)
        else:
            self.heard.append((sender, message))

    def on_multicast(self, tree: str, message: Any) -> None:
        self.heard.append((tree, message))

    def deliver(self, application: str | None, message: Any) -> Any:
        return message(self) if callable(message) else message

    def on_stop(self) -> None:
        STOPPED.append(self.container)
        KEPT[self.container] = self


STOPPED: list[str] = []
KEPT: dict[str, Probe] = {}
HELD = threading.Event()


def hold(_: Probe) -> None:
    """By reference, as all these classes: they are on containers of this process."""
    HELD.wait(30)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, 3, ring=terms())
    try:
        settled(made, "c0", "c1", "c2")
        yield made
    finally:
        HELD.set()
        made.close()


def test_callbacks_run_one_after_the_other_on_a_thread_of_their_own(world: World) -> None:
    app = App(world, Probe, "probe", every=0.01).start()
    app.whole()
    for name in app.names:
        app.send_to(name, "hello")
        app.multicast(name, through=name)
    for name in app.names:
        until(lambda name=name: len(app.ask(lambda one: one.heard, name)) == 4)
        heard = app.ask(lambda one: one.heard, name)
        assert sorted(said for about, said in heard if about == "probe") == app.names, "each multicast once"
        assert (None, "hello") in heard
        until(lambda name=name: app.ask(lambda one: one.timers, name) > 3)
        assert len(app.ask(lambda one: one.threads, name)) == 1
    STOPPED.clear()
    app.stop()
    assert sorted(STOPPED) == app.names
    for late in (KEPT["c0"].subscribe, lambda: KEPT["c0"].multicast(1), lambda: KEPT["c0"].send_to("c1", 1)):
        with pytest.raises(VertexError, match="'probe' is stopped"):
            late()
    assert not [one for one in threading.enumerate() if one.name.startswith("holdfast-vertex")]
    rings = [ring_at(service)._ring for service in world.services]
    until(lambda: not any(ring._node.groups.trees for ring in rings))
    app.stop()  # again: nothing
    with pytest.raises(VertexError, match="has no vertex on c1"):
        app.send_to("c1", "hello")


def test_vertices_send_to_each_other_and_hear_what_does_not_arrive(world: World) -> None:
    app = App(world, Probe, "probe").start("c0", "c1")

    def sends(to: str | None, message: Any) -> Any:
        return lambda one: one.send_to(to, message)

    app.ask(sends("c1", {"a": 1}), "c0")
    app.ask(sends("c0", "to myself"), "c0")
    until(lambda: app.ask(lambda one: one.heard, "c1") == [("c0", {"a": 1})])
    assert app.ask(lambda one: one.heard, "c0") == [("c0", "to myself")]
    with pytest.raises(VertexError, match="given no container"):
        app.ask(sends(None, 1), "c0")
    with pytest.raises(VertexError, match="no container 'c9' on the ring"):
        app.ask(sends("c9", 1), "c0")
    with pytest.raises(VertexError, match="has no vertex on c2"):
        app.ask(sends("c2", 1), "c0")
    with pytest.raises(VertexError, match=r"17,000,0.. bytes is too large: 16,777,216"):
        app.ask(sends("c1", bytes(17_000_000)), "c0")
    with pytest.raises(VertexError, match="A generator cannot be sent"):
        app.ask(lambda one: one.send_to("c1", (x for x in "x")), "c0")
    with pytest.raises(VertexError, match=r"65,6.. bytes is too large: 65,536"):
        app.ask(lambda one: one.multicast(bytes(65_600)), "c0")
    with pytest.raises(VertexError, match="too large"):
        app.ask(lambda one: one.route("another", bytes(70_000)), "c0")
    with pytest.raises(VertexError, match="text for its name"):
        app.ask(lambda one: one.subscribe(7), "c0")
    with pytest.raises(VertexError, match="no application 7"):
        app.ask(lambda one: one.route(7, "?"), "c0")
    world.services.pop(1).close()
    with pytest.raises(VertexError, match=r"c1 does not answer|no container 'c1'"):
        app.ask(sends("c1", "too late"), "c0")
    assert app.ask(lambda one: one.container, "c0") == "c0", "and it goes on"


def test_a_callback_that_raises_is_told_and_the_next_is_called(world: World) -> None:
    app = App(world, Probe, "probe", every=0.01, fails="on_timer").start("c0")
    until(lambda: app.status("c0")["c0"].failed > 25)
    told = app.status("c0")["c0"]
    assert len(told.failures) == 20, "the last ones are kept"
    assert {one.callback for one in told.failures} == {"on_timer"}
    assert "ValueError: timer" in told.failures[0].text
    assert "in on_timer" in told.failures[0].text
    with pytest.raises(FunctionError, match=r"deliver raised ZeroDivisionError.*test_vertex.py, line"):
        app.ask(lambda one: 1 // 0, "c0")
    with pytest.raises(FunctionError, match="deliver raised SystemExit"):
        app.ask(lambda one: sys.exit(3), "c0")

    def breaks(one: Probe) -> None:
        one.every = -1

    app.send_to("c0", breaks)
    until(lambda: "every is -1" in app.status("c0")["c0"].failures[-1].text)
    failed = app.status("c0")["c0"].failed
    assert app.ask("?", "c0") == "?"
    assert app.status("c0")["c0"].failed == failed, "what is no period is told once"
    app.stop("c0")


@pytest.mark.parametrize("fails", ["__init__", "on_start"])
def test_a_vertex_that_cannot_start_leaves_nothing(world: World, fails: str) -> None:
    app = App(world, Probe, "probe", fails=fails)
    with pytest.raises(FunctionError, match=f"{fails} raised ValueError: this one cannot"):
        app.start("c0")
    assert not [one for one in threading.enumerate() if one.name.startswith("holdfast-vertex")]
    until(lambda: not ring_at(world.services[0])._ring._node.groups.trees)
    with pytest.raises(VertexError, match="has no vertex on c0"):
        app.status("c0")
    with pytest.raises(VertexError, match=r"every is 0"):
        App(world, Probe, "probe", every=0).start("c0")
    App(world, Probe, "probe").start("c0")  # the name is free


def test_a_program_that_containers_cannot_read_is_refused(world: World) -> None:
    app = App(world, Probe, "probe")
    app.program = b"cnowhere\nNothing\n."
    with pytest.raises(VertexError, match="ModuleNotFoundError: No module named 'nowhere'") as refused:
        app.start("c0")
    assert "register_pickle_by_value" in refused.value.todo


def test_an_application_is_started_once(world: World) -> None:
    app = App(world, Probe, "probe").start("c0").start("c0")
    with pytest.raises(VertexError, match="'probe' runs already"):
        app.start("c0", serial="2")
    app.stop("c0", serial="2")
    assert app.ask("still there", "c0") == "still there"
    App(world, Probe, "probe", "bob").start("c0")  # another's may have the same name


def test_a_full_inbox_refuses(world: World) -> None:
    HELD.clear()
    app = App(world, Probe, "probe").start("c0", "c1")
    app.send_to("c0", hold)
    until(lambda: app.status("c0")["c0"].waiting == 0)
    for number in range(MOST_WAITING):
        app.send_to("c0", number)
    with pytest.raises(VertexError, match="takes nothing now"):
        app.send_to("c0", "one too many")
    with pytest.raises(VertexError, match="takes nothing now"):
        app.ask(lambda one: one.send_to("c0", "and another"), "c1")
    app.ask(lambda one: one.send_to("c1", bytes(16_000_000)), "c1")  # the largest there are
    app.multicast("x" * 65_000, through="c1")
    until(lambda: app.ask(lambda one: [len(said) for _, said in one.heard], "c1") == [16_000_000, 65_000])
    until(lambda: app.status("c0")["c0"].dropped == 3)
    assert app.status("c0")["c0"].waiting == MOST_WAITING
    HELD.set()
    until(lambda: app.status("c0")["c0"].waiting == 0)
    assert app.ask(lambda one: len(one.heard), "c0") == MOST_WAITING
    HELD.clear()
    app.send_to("c0", hold)
    until(lambda: app.status("c0")["c0"].waiting == 0)
    for _ in range(4):
        app.send_to("c0", bytes(16_000_000))
    with pytest.raises(VertexError, match="takes nothing now"):
        app.send_to("c0", bytes(16_000_000))
    app.send_to("c0", "a small one still fits")
    HELD.set()
    until(lambda: app.ask(lambda one: one.heard[-1][1], "c0") == "a small one still fits")
    app.send_to("c0", bytes(16_000_000))


def test_a_callback_that_does_not_end_holds_up_nobody_else(world: World) -> None:
    HELD.clear()
    stuck = App(world, Probe, "stuck").start()
    other = App(world, Probe, "other").start()
    stuck.send_to("c0", hold)
    with pytest.raises(VertexError, match="has not answered within"):
        stuck.ask("?", "c0", seconds=0.2)
    assert other.ask("?", "c0") == "?"
    settled(world, "c0", "c1", "c2")  # nor the ring
    with pytest.raises(VertexError, match="still in its on_recv"):
        stuck.stop("c0", seconds=0.2)
    stuck.stop("c1", "c2")
    stuck.start("c0", serial="2")  # its name is free all the same
    rings = [ring_at(service)._ring for service in world.services]
    group = stuck.name.key
    stuck.stop("c0", serial="2")
    until(lambda: not any(group in ring._node.groups.trees for ring in rings))
    HELD.set()
    until(lambda: not [one for one in threading.enumerate() if one.name == "holdfast-vertex-stuck"])


def test_what_is_given_to_the_ring_has_a_pace(world: World) -> None:
    """Three hundred multicasts at once: they take their time, and the ring loses nobody by them."""
    app = App(world, Probe, "probe").start()
    app.whole()

    def many(one: Probe) -> float:
        began = time.monotonic()
        for number in range(100):
            one.multicast(number)
        return time.monotonic() - began

    assert app.ask(many, "c0", seconds=60) > 0.4, "64 at once, then 64 a second"
    for name in app.names:
        until(lambda name=name: len(app.ask(lambda one: one.heard, name)) == 100)
        assert sorted(said for _, said in app.ask(lambda one: one.heard, name)) == list(range(100))


def test_trees_of_a_vertex_s_own(world: World) -> None:
    """More trees than one, another application's, and their ends."""
    app = App(world, Probe, "probe").start()
    ears = App(world, Probe, "ears").start("c1", "c2")
    for name in ("c1", "c2"):
        ears.ask(lambda one: (one.unsubscribe(), one.subscribe("probe"), one.subscribe("prices")), name)
    assert ears.status("c1")["c1"].trees == ("probe", "prices")
    app.whole()
    until(
        lambda: all(app.ask(lambda one: one.children("prices") or one.parent("prices"), name) for name in ["c1", "c2"])
    )
    app.multicast("to both", through="c0")
    app.multicast("prices", through="c0", tree="prices")
    for name in ("c1", "c2"):
        until(lambda name=name: len(ears.ask(lambda one: one.heard, name)) == 2)
        assert sorted(ears.ask(lambda one: one.heard, name)) == [("prices", "prices"), ("probe", "to both")]
    until(lambda: app.ask(lambda one: one.heard, "c1"))
    assert app.ask(lambda one: one.heard, "c1") == [("probe", "to both")]
    roots = [name for name in app.names if app.ask(lambda one: one.is_root("prices"), name)]
    assert len(roots) == 1
    ears.stop("c1", "c2")
    app.multicast("once more", through="c2")
    until(lambda: len(app.ask(lambda one: one.heard, "c1")) == 2)
    app.stop()


def test_without_a_ring_there_are_no_vertices(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    try:
        with pytest.raises(ContainerError, match="not part of a ring") as refused:
            App(world, Probe, "probe").start()
        assert "ring=True" in refused.value.todo
    finally:
        world.close()


class Unspeakable(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Trap:
    """An attribute that raises."""

    def __get__(self, *_: object) -> Any:
        raise Unspeakable


def test_a_vertex_outlives_errors_that_cannot_be_shown(world: World) -> None:
    app = App(world, Probe, "probe", every=0.01).start("c0")

    def spoil(one: Probe) -> None:
        kind = type("Spoilt", (Probe,), {"on_timer": Trap(), "on_multicast": Trap(), "every": Trap()})
        one.__dict__.pop("every")
        one.__class__ = kind

    app.send_to("c0", spoil)
    until(lambda: app.status("c0")["c0"].failed == 1)
    app.multicast("?", through="c0")
    until(lambda: app.status("c0")["c0"].failed == 2)
    assert all("Unspeakable" in one.text for one in app.status("c0")["c0"].failures)
    with pytest.raises(FunctionError, match=r"deliver raised .*Unspeakable"):
        app.ask(speak, "c0")
    assert app.ask("still there", "c0") == "still there"
    app.stop("c0")


def speak(_: Probe) -> None:
    raise Unspeakable


class Flood(Vertex):
    """Says as much as it may."""

    every = 0.001

    def __init__(self) -> None:
        self.said = self.heard = 0

    def on_timer(self) -> None:
        self.multicast(self.said)
        self.said += 1

    def on_multicast(self, tree: str, message: Any) -> None:
        self.heard += 1

    def deliver(self, application: str | None, message: Any) -> Any:
        return self.said, self.heard


@pytest.mark.heavy
def test_a_ring_bears_all_that_vertices_say(tmp_path: Path) -> None:
    """Everybody says as much as it may for ten seconds: nobody is taken for lost meanwhile."""
    register_pickle_by_value(sys.modules[__name__])
    world = World(tmp_path, 8, processes=True, ring=terms(tick=0.5, patience=10))  # as jobs have it
    try:
        names = list(world.clients)
        settled(world, *names)
        app = App(world, Flood, "flood").start()
        app.whole()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            assert all(neighbours(world, name) == set(names) for name in names)
            time.sleep(0.2)
        told = app.status()
        assert all(one.calls > 300 for one in told.values()), told
        said = [app.ask("?", name)[0] for name in names]
        app.stop()
        assert min(said) > 100
    finally:
        unregister_pickle_by_value(sys.modules[__name__])
        world.close()
