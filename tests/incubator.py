"""One nursery for all containers that the tests of one process start.

A run has a nursery of its own, since its job has a hash seed of its own: a second of work before the first container is
there. What is tested in a thousand runs is not that, so here all of them have the same seed and the same nursery, which
forks their containers as any would. Tests of nurseries and seeds are marked ``own_nursery``; drivers that are processes
of their own have one as in earnest.

Nor is a container taken for dead here that only waits for a processor, as beside other tests it may for seconds: tests
count losses. Those of silence say how long it may last (``SILENT``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

import pytest

from holdfast.launch.fleet import Silence
from holdfast.launch.forkserver import POSSIBLE, Nursery
from holdfast.launch.local import ChildLauncher, ContainerSettings

SEED = "1"
_lock = threading.Lock()
_nursery: Nursery | None = None


def nursery() -> Nursery | None:
    global _nursery
    with _lock:
        if _nursery is not None and not _nursery.alive:
            _nursery.close()
            _nursery = None
        if _nursery is None and POSSIBLE:
            _nursery = Nursery({**os.environ, "PYTHONHASHSEED": SEED})
        return _nursery


def pid() -> int | None:
    return _nursery.pid if _nursery else None


def close() -> None:
    global _nursery
    with _lock:
        if _nursery is not None:
            _nursery.close()
            _nursery = None


def _environment(_: ContainerSettings, changes: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, **(changes or {}), "PYTHONHASHSEED": SEED}


SILENT: tuple[float, ...] = Silence.__init__.__defaults__ or ()
"""What a run has unless it is told otherwise."""


def let_silence_last(patch: pytest.MonkeyPatch, kill: float = 120.0) -> None:
    suspect, _, *others = SILENT
    patch.setattr(Silence.__init__, "__defaults__", (suspect, kill, *others))


def share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ContainerSettings, "environment", _environment)
    patch.setattr(ChildLauncher, "_living_nursery", lambda _: nursery())


_OWN = ContainerSettings.environment, ChildLauncher._living_nursery


def share_not(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ContainerSettings, "environment", _OWN[0])
    patch.setattr(ChildLauncher, "_living_nursery", _OWN[1])
