"""A container process like any other that counts which handlers are reached, in the file that COUNTS names."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.wire.handlers import Handler, Table

counts: Counter[str] = Counter()


def counting(counted: Counter[str], find: Callable[[Table, type[Any]], Handler | None]) -> Any:
    """``Table.find`` for what comes in at a door: whoever is found counts when it runs."""

    def found(table: Table, kind: type[Any]) -> Handler | None:
        handler = find(table, kind)
        if handler is None:
            return None

        def run(*arguments: Any) -> Any:
            counted[kind.__name__] += 1
            return handler.run(*arguments)

        return Handler(run, handler.about)

    return found


def main() -> None:
    from holdfast.launch import process

    file = Path(os.environ["COUNTS"])
    Table.find = counting(counts, Table.find)  # type: ignore[method-assign]

    def tell() -> None:
        while True:
            file.with_suffix(".new").write_text(json.dumps(dict(counts)))
            file.with_suffix(".new").rename(file)
            over.wait(0.1)

    over = threading.Event()
    threading.Thread(target=tell, daemon=True).start()
    process.main()


if __name__ == "__main__":
    main()
