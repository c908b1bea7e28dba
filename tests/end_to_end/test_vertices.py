"""Programs of users' own on the containers of jobs that run: beside their state, and through the loss of containers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import figure_seven
import pytest
from figure_seven import MicroPromotion, oracle
from kit import NEVER
from kit import until as until_within
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

import holdfast as hf

pytestmark = pytest.mark.spark
register_pickle_by_value(figure_seven)  # containers cannot import it


def drawn(base: Path, spark: SparkSession) -> hf.Job:
    spark.range(1000).selectExpr("id % 7 AS k").write.parquet(str(base / "input"))
    job = hf.Job("shop", spark, store=base / "store")
    rows = job.read(spark.readStream.schema("k long").parquet(str(base / "input")))
    rows.key_by("k", name="by_key").agg(n=hf.count())
    return job


def until(true: Callable[[], bool]) -> None:
    until_within(true, NEVER, "what was waited for")


def alive(run: hf.Run) -> tuple[str, ...]:
    return tuple(sorted(one.name for one in run.status().containers if one.alive))


def test_figure_7_beside_a_job_whose_containers_die_and_come(tmp_path: Path, spark: SparkSession) -> None:
    with drawn(tmp_path, spark).start(containers=3, slices=6, ring=True) as run:
        app = run.vertices(MicroPromotion, "micro-promotion", creator="ann")
        assert isinstance(app, hf.Vertices)
        assert app.await_tree()

        def all_in() -> bool:
            """A result of everyone alive; and whatever there is, is the oracle's over those that are in it."""
            results: dict[int, Any] = app.ask("results")
            for interval, (products, of) in results.items():
                assert len(set(of)) == len(of)
                assert products == oracle(of, interval)
            return any(of == alive(run) for _, of in results.values())

        until(all_in)
        (root,) = [name for name, one in app.status().items() if one.root]
        run.kill(root)
        until(lambda: root not in alive(run) and len(alive(run)) == 3)
        assert app.await_tree(), "also the one that came for it"
        until(all_in)
        run.process_all_available()
        assert {row["k"]: row["n"] for row in run.state("by_key").to_arrow().to_pylist()} == {
            key: len(range(key, 1000, 7)) for key in range(7)
        }
        app.stop()
        app.stop()
        with pytest.raises(hf.VertexError, match="'micro-promotion' of ann is stopped"):
            app.ask("results")
        again = run.vertices(MicroPromotion, "micro-promotion", creator="ann")  # its name is free
        assert again.await_tree()
    with pytest.raises(hf.ContainerError, match="The run is stopped"):
        again.status()
    again.stop()


class Failing(hf.ring.Vertex):
    every = 0.05

    def __init__(self, where: str = "on_timer") -> None:
        self.where = where

    def on_start(self) -> None:
        super().on_start()
        here = self.where in ("on_start", self.container)
        if here or (self.where.startswith("not") and self.container not in self.where):
            raise ValueError("no start here")

    def on_timer(self) -> None:
        raise ValueError("no timer either")

    def on_recv(self, sender: str | None, message: Any) -> None:
        self.heard = sender, message

    def on_multicast(self, tree: str, message: Any) -> None:
        self.heard = tree, message

    def deliver(self, application: str | None, message: Any) -> Any:
        return getattr(self, "heard", None) if message == "heard" else 1 // 0


def test_what_goes_wrong_with_vertices_is_said_and_the_hub_goes_on(tmp_path: Path, spark: SparkSession) -> None:
    register_pickle_by_value(sys.modules[__name__])
    spark.range(10).write.parquet(str(tmp_path / "input"))
    hub = hf.Hub("shop", spark, store=tmp_path / "store")
    hub.read(spark.readStream.schema("id long").parquet(str(tmp_path / "input")), name="rows")
    hub.job("totals").stream("rows").key_by("id", name="by_id").agg(n=hf.count())
    with pytest.raises(hf.PlanError, match="always form a ring"):
        hub.start(ring=False)
    with hub.start(containers=2, slices=2) as run:
        lock = threading.Lock()

        class Unsendable(hf.ring.Vertex):
            def on_timer(self) -> None:
                lock.acquire()

        first, second = alive(run)
        for vertex, name, more, error, says in [
            (Unsendable, "a", {}, hf.PlanError, "Unsendable cannot be sent to containers: TypeError: cannot pickle"),
            (Failing(), "a", {}, hf.PlanError, "takes a class below hf.ring.Vertex"),
            (str, "a", {}, hf.PlanError, "takes a class below hf.ring.Vertex"),
            (Failing, "", {}, hf.PlanError, "has a text for its name"),
            (Failing, "a", {"where": "on_start"}, hf.FunctionError, "on_start raised ValueError: no start here"),
            (Failing, "a", {"where": second}, hf.FunctionError, "on_start raised ValueError: no start here"),
            (Failing, "a", {"wrong": 1}, hf.FunctionError, "__init__ raised TypeError"),
        ]:
            with pytest.raises(error, match=says):
                run.vertices(vertex, name, **more)  # type: ignore[arg-type]
        app = run.vertices(Failing, "a")  # nothing is left of those before
        with pytest.raises(hf.VertexError, match="'a' runs already"):
            run.vertices(Failing, "a")
        assert app.await_tree()
        until(lambda: all(one.failed for one in app.status().values()))
        told = [event.text for event in run.status().events if event.kind == "vertices"]
        assert f"application 'a': on_timer on {first} raised ValueError: no timer either" in told
        with pytest.raises(hf.FunctionError, match="deliver raised ZeroDivisionError"):
            app.ask("?")
        (root,) = [name for name, one in app.status().items() if one.root]
        app.send_to(root, "hello")
        assert app.ask("heard") == (None, "hello")
        app.multicast({"a": 1})
        until(lambda: app.ask("heard") == ("a", {"a": 1}))
        with pytest.raises(hf.VertexError, match="no living container 'nobody'"):
            app.send_to("nobody", 1)
        with pytest.raises(hf.VertexError, match="too large: 65,536 is the most"):
            app.multicast(bytes(70_000))
        with pytest.raises(hf.PlanError, match="A lock cannot be sent"):
            app.send_to(root, lock)
        only = run.vertices(Failing, "only", where=f"not {first} nor {second}")
        run.scale(containers=3)
        refused = "has no vertex: Application 'only': on_start raised ValueError: no start here"
        until(lambda: any(refused in event.text for event in run.status().events))
        assert set(only.status()) == {first, second}
        only.stop()
        assert app.await_tree(), "the other application has one there"
        assert len(app.status()) == 3
        run.process_all_available()
        assert run.state("totals/by_id").get(3)["n"] == 1
    app.stop()
