"""Names in quotes, as two kinds of SQL have them."""

from __future__ import annotations

import re

_QUOTED = re.compile(r"'(?:[^']|'')*'|`((?:[^`]|``)*)`")


def in_double_quotes(text: str) -> str:
    """Names in backquotes, as Spark has them, in the double ones of others; strings stay as they are.

    >>> in_double_quotes("`a b` + '`c`'")
    '"a b" + \\'`c`\\''
    """

    def put(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        name = found[1].replace("``", "`").replace('"', '""')
        return f'"{name}"'

    return _QUOTED.sub(put, text)
