"""Which worker gets which tests, and when, if the suite runs in several processes side by side (``-n auto``).

Tests on Spark are dealt one by one, so that none waits behind another while a worker is idle. All others go by file:
they take no time, and one message is enough. So do those that share what a fixture of their module sets up, which would
be set up in every worker that gets one of them.

Long ones come first, then all that is on Spark, and the end is made of what takes no time: no worker is left alone.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).parents[1]
MOST_WORKERS = 6


def workers(arguments: list[str]) -> int:
    """One more than there are cores, since a test on Spark mostly waits.

    None for files that were named one by one: what is looked at closely should not be far away.
    """
    named = [argument for argument in arguments if ".py" in argument]
    return 0 if named and len(named) == len(arguments) else min(MOST_WORKERS, (os.cpu_count() or 1) + 1)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    return sorted(items, key=lambda item: (not item.get_closest_marker("long"), not _one_by_one(_file(item.nodeid))))


class Dealing(LoadScopeScheduling):  # type: ignore[misc]
    """What is dealt at once has the same scope."""

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        return nodeid if _one_by_one(file) else file

    def remove_node(self, node: WorkerController) -> str | None:
        """Of a worker that crashed only what it had not done is dealt again.

        Units without a test in them would come last, and whoever is dealt one waits for ever: workers are dealt more
        when they have done something, and keep their last test until they know what follows it.
        """
        units = self.assigned_work[node]
        for scope in [scope for scope, unit in units.items() if all(unit.values())]:
            del units[scope]
        return super().remove_node(node)  # type: ignore[no-any-return]


def _file(nodeid: str) -> str:
    return nodeid.split("::")[0]


@functools.cache
def _one_by_one(file: str) -> bool:
    """By what is written in the file: whoever deals has names only."""
    text = (ROOT / file).read_text()
    return "pytest.mark.spark" in text and 'scope="module"' not in text
