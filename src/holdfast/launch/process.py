"""``python -m holdfast.launch.process``: one container, for as long as its parent lives.

The parent writes the settings, with the token, as one JSON line to standard input, and keeps that pipe open. When it
closes, for whatever reason, also ``kill -9`` of the parent, this process ends at once: no orphan, no polling, and
nothing secret on a command line or in a file. Where it listens goes back as one JSON line on standard output.

With ``nursery`` on the command line this is a nursery first, and goes on as each of its children.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from holdfast.container.priority import LOW, step_back, step_back_together
from holdfast.wire.locations import is_folder
from holdfast.wire.socket_folder import clear

if TYPE_CHECKING:
    from holdfast.container.service import ContainerService

_PR_SET_PDEATHSIG = 1


def _end_with_parent(host: str) -> NoReturn:
    while os.read(0, 4096):
        pass
    if is_folder(host):  # mostly the nursery is there to do it, and has the patience
        clear(host, 0)
    os._exit(0)


def _end_with_thread(parent: int) -> None:
    """Let the kernel end this process with the thread that started it: that also reaches one that is stopped or stuck.

    Where there is no prctl, the pipe has to do.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(0)


def _settings() -> dict[str, object]:
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(0, 4096)  # nothing follows it
        if not part:
            os._exit(0)
        line += part
    loaded: dict[str, object] = json.loads(line)
    return loaded


def _get_ready(gentle: bool) -> None:
    """Import and load the kernels: more than a second of computing.

    In a thread of its own, which may give way to others: the threads that do the work later do not inherit that.
    """
    if gentle:
        step_back()
        step_back_together(LOW)
    from pyspark import cloudpickle

    import holdfast.container.service
    import holdfast.ring.service
    import holdfast.ring.vertex_service  # noqa: F401 - all are loaded here for main
    from holdfast.state.codec import pickle_by_value
    from holdfast.state.warm import warm

    # Users' functions need it to be loaded, and states of their classes to be kept; nothing else here knows PySpark.
    pickle_by_value(cloudpickle.dumps)
    warm()
    if gentle:
        step_back_together(0)


def assembled(container: str, token: str, host: str, threads: int, staging_bytes: int) -> ContainerService:
    """A container's service with all its rooms."""
    from holdfast.container.service import ContainerService
    from holdfast.ring.service import RingHandlers
    from holdfast.ring.vertex_service import VertexHandlers

    service = ContainerService(container, token, host, threads, staging_bytes)
    ring = RingHandlers(service.address, token)
    service.add(ring)
    service.add(VertexHandlers(ring.the_ring, token))
    return service


def main() -> None:
    forked = sys.argv[1:2] == ["nursery"]
    if forked:
        from holdfast.launch import forkserver as nursery

        nursery.tend(partial(_get_ready, gentle="gentle" in sys.argv), sys.argv[-1])
    settings = _settings()
    parent = int(str(settings.get("parent", 0)))
    if parent:
        _end_with_thread(parent)
    host = str(settings["host"])
    threading.Thread(target=_end_with_parent, args=(host,), daemon=True, name="end-with-parent").start()

    if not forked:
        getting_ready = threading.Thread(target=_get_ready, args=(bool(settings.get("gentle")),), name="getting-ready")
        getting_ready.start()
        getting_ready.join()
    service = assembled(
        container=str(settings["container"]),
        token=str(settings["token"]),
        host=host,
        threads=int(str(settings["threads"])),
        staging_bytes=int(str(settings["staging_bytes"])),
    )
    print(json.dumps({"location": service.address.location, "pid": os.getpid()}), flush=True)
    service.serve()
    sys.stdout.close()


if __name__ == "__main__":
    main()
