"""What ``run.sql`` returns: rows of one committed epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


class Rows:
    """The answer to a question. Iterates over its rows as dicts; ``epoch`` is the epoch that all of them are of."""

    def __init__(self, table: pa.Table, epoch: int) -> None:
        self._table = table
        self.epoch = epoch

    @property
    def columns(self) -> list[str]:
        return list(self._table.column_names)

    def to_arrow(self) -> pa.Table:
        return self._table

    def to_pandas(self) -> Any:
        return self._table.to_pandas()

    def to_pylist(self) -> list[dict[str, Any]]:
        return self._table.to_pylist()  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._table.to_batches():
            yield from batch.to_pylist()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        return f"<{len(self)} rows of epoch {self.epoch}: {', '.join(self.columns)}>"
