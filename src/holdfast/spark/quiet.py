"""PySpark logs every error that has a query context, as kilobytes of JSON, before it raises it.

We say in a few lines what it was: while we ask Spark, these logs are off for the thread that asks.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from pyspark.logger import PySparkLogger

_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_asking = threading.local()


class _Silence(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(_asking, "now", False)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    for name in _LOGGERS:
        logger = PySparkLogger.getLogger(name)
        if not any(isinstance(one, _Silence) for one in logger.filters):
            logger.addFilter(_Silence())
    before, _asking.now = getattr(_asking, "now", False), True
    try:
        yield
    finally:
        _asking.now = before
