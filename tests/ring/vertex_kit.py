"""Applications of vertices on the containers of a world, told what a driver would tell them."""

from __future__ import annotations

import pickle
from typing import Any

import figure_seven
from container_kit import NEVER, World, until
from pyspark import cloudpickle
from pyspark.cloudpickle import register_pickle_by_value

from holdfast.errors import HoldfastError
from holdfast.ring import Vertex
from holdfast.ring.standing import Standing, is_whole
from holdfast.ring.vertex_messages import (
    AppName,
    AskVertex,
    AskVertexStatus,
    FindRoot,
    StartVertices,
    StopVertices,
    VertexCast,
    VertexLetter,
    VertexStatus,
)
from holdfast.wire.client import Unreachable

register_pickle_by_value(figure_seven)  # containers cannot import it


class App:
    def __init__(self, world: World, vertex: type[Vertex], name: str, creator: str = "", **arguments: Any) -> None:
        self.world, self.name = world, AppName(name, creator)
        self.program = cloudpickle.dumps((vertex, arguments))
        self.names = list(world.clients)

    def start(self, *names: str, serial: str = "1") -> App:
        for name in names or self.names:
            self.world.call(name, StartVertices(self.name, serial, self.program))
        return self

    def stop(self, *names: str, serial: str = "1", seconds: float = NEVER) -> None:
        for name in names or self.names:
            self.world.call(name, StopVertices(self.name, serial, seconds))

    def root(self, through: str) -> str:
        return self.world.call(through, FindRoot(self.name)).container

    def ask(self, message: Any, at: str, seconds: float = NEVER) -> Any:
        call = AskVertex(self.name, cloudpickle.dumps(message), seconds)
        return pickle.loads(self.world.call(at, call).body)

    def send_to(self, name: str, message: Any) -> None:
        self.world.call(name, VertexLetter(self.name, None, cloudpickle.dumps(message)))

    def multicast(self, message: Any, through: str, tree: str | None = None) -> None:
        self.world.call(through, VertexCast(self.name, tree or self.name.name, cloudpickle.dumps(message)))

    def status(self, *names: str) -> dict[str, VertexStatus]:
        return {name: self.world.call(name, AskVertexStatus(self.name)) for name in names or self.names}

    def whole(self, *names: str) -> None:
        """Until these, and no others, are one tree."""

        def is_so() -> bool:
            try:
                told = self.status(*names)
            except (HoldfastError, Unreachable):
                return False
            return is_whole({name: Standing(one.root, one.parent, one.children) for name, one in told.items()})

        until(is_so)
