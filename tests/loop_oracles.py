"""What loops must come to: components by union and find, ranks by power iteration."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def components(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Of each node the least one that hangs together with it."""
    parent: dict[int, int] = {}

    def find(node: int) -> int:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for one, other in pairs:
        first, second = find(one), find(other)
        parent[max(first, second)] = min(first, second)
    return {node: find(node) for node in list(parent)}


def page_ranks(links: Iterable[tuple[int, int]], damping: float) -> dict[int, float]:
    """Each page has 1 - damping of its own, and shares of the pages that link to it; what a page without links has goes
    nowhere."""
    unlike = sorted(set(links))
    pages = sorted({page for link in unlike for page in link})
    at = {page: number for number, page in enumerate(pages)}
    out = np.zeros(len(pages))
    for page, _ in unlike:
        out[at[page]] += 1
    share = np.zeros((len(pages), len(pages)))
    for page, target in unlike:
        share[at[target], at[page]] = 1 / out[at[page]]
    rank = np.zeros(len(pages))
    for _ in range(500):
        rank = 1 - damping + damping * share @ rank
    return dict(zip(pages, rank.tolist(), strict=True))
