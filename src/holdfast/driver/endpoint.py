"""The master's own door: where scans ask for a slice's present owner and data sources find a job.

It answers small questions and carries no rows. Same token, same check of who is meant as at a container's door.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow.flight as flight

from holdfast.errors import HoldfastError
from holdfast.wire import framing as wire
from holdfast.wire.client import MASTER, Address

Question = Callable[[dict[str, Any]], dict[str, Any]]


class Desk(flight.FlightServerBase):
    def __init__(self, host: str, token: str, questions: Mapping[str, Question]) -> None:
        super().__init__(f"grpc://{host}:0", middleware={"door": wire.Doorkeeper(token, MASTER)})
        self._questions = dict(questions)
        # It answers from here on. ``serve`` would only wait, and take the signals from the program meanwhile: a Ctrl-C
        # would end this door, and nobody else would hear of it.
        self.address = Address(MASTER, f"grpc://{host}:{self.port}")

    def answer(self, questions: Mapping[str, Question]) -> None:
        """These too, from now on."""
        self._questions.update(questions)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        try:
            ask = self._questions.get(action.type)
            if ask is None:
                raise HoldfastError(f"The master knows no question '{action.type}'.")
            answer = ask(wire.unpack(action.body.to_pybytes())[0])
        except HoldfastError as error:
            raise flight.FlightServerError(error.to_wire()) from error
        return iter([flight.Result(wire.pack(answer))])

    def close(self) -> None:
        self.shutdown()
