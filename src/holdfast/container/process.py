"""``python -m holdfast.container.process``: one container, for as long as its parent lives.

The parent writes the settings, with the token, as one JSON line to standard input, and keeps that pipe open. When it
closes, for whatever reason, also ``kill -9`` of the parent, this process ends at once: no orphan, no polling, and
nothing secret on a command line or in a file. The port goes back as one JSON line on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import NoReturn


def _end_with_parent() -> NoReturn:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _settings() -> dict[str, object]:
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            os._exit(0)
        line += part
    loaded: dict[str, object] = json.loads(line)
    return loaded


def main() -> None:
    settings = _settings()
    threading.Thread(target=_end_with_parent, daemon=True, name="end-with-parent").start()

    from holdfast.container.service import ContainerService
    from holdfast.state.warm import warm

    warm()
    service = ContainerService(
        container=str(settings["container"]),
        token=str(settings["token"]),
        host=str(settings["host"]),
        threads=int(str(settings["threads"])),
        staging_bytes=int(str(settings["staging_bytes"])),
    )
    print(json.dumps({"port": service.port, "pid": os.getpid()}), flush=True)
    service.serve()
    sys.stdout.close()


if __name__ == "__main__":
    main()
