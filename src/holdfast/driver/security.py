"""How the processes of a run talk to each other, decided once at its start, and who gets which pass.

With a local master over Unix sockets, which the kernel guards; else under TLS both ways, unless the start says that the
network is to be trusted.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.wire.passes import Pass

WORKER = "worker"
"""A task of Spark's."""
READER = "reader"
"""Another process of the same user's."""


@dataclass(frozen=True)
class Plain:
    """No TLS: whoever listens on the network between driver, executors and containers reads rows and token, and with it
    may do anything. For networks that are guarded otherwise."""


class Passes:
    """Of one run."""

    def __init__(self, *, secure: bool) -> None:
        self._token = secrets.token_urlsafe(32)
        self._authority = None
        if secure:
            from holdfast.wire.authority import Authority  # what it stands on takes a moment to load

            self._authority = Authority()

    def of(self, name: str, *, answers: bool = True) -> str:
        """For a process of this name; one that ``answers`` has a door."""
        if self._authority is None:
            return self._token
        return Pass(self._token, self._authority.papers(name, answers=answers)).text


def open_spark(conf: Callable[[str, str], str | None]) -> str | None:
    """What a cluster's session is to be told before it guards what we give to its tasks: keys are among it."""

    def off(name: str) -> bool:
        return conf(name, "false") != "true"

    missing = [name for name in ("spark.authenticate",) if off(name)]
    if off("spark.network.crypto.enabled") and off("spark.ssl.rpc.enabled"):
        missing.append("spark.network.crypto.enabled")
    if not missing:
        return None
    return (
        f"Spark's own traffic is open ({', '.join(missing)}): who listens on its network sees rows, and the job's keys "
        "in Spark's tasks (docs/security.md)"
    )
