"""What differs between two plain values, for the person who must decide which of the two was meant."""

from __future__ import annotations

from typing import Any


def differences(where: str, stored: Any, asked: Any) -> list[str]:
    """What differs, line by line, each with its place."""
    if isinstance(stored, dict) and isinstance(asked, dict):
        lines: list[str] = []
        for key in dict.fromkeys([*stored, *asked]):
            if key not in asked:
                lines.append(f"{where}.{key}: {_short(stored[key])} in the store, nothing now")
            elif key not in stored:
                lines.append(f"{where}.{key}: nothing in the store, {_short(asked[key])} now")
            else:
                lines += differences(f"{where}.{key}", stored[key], asked[key])
        return lines
    if isinstance(stored, list) and isinstance(asked, list) and len(stored) == len(asked):
        pairs = enumerate(zip(stored, asked, strict=True))
        return [line for number, (a, b) in pairs for line in differences(f"{where}[{number}]", a, b)]
    return [] if stored == asked else [f"{where}: {_short(stored)} in the store, {_short(asked)} now"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "…"
