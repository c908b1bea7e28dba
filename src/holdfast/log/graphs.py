"""The graphs that a job has had: ``job.json`` has version 0, each file in ``graph/`` a later one. The oldest files go
in time (``janitor``).

What the log has of an epoch is in the terms of one of them, which its prepare names: where a stage stood, and by which
numbers its inputs are known in the segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.log.records import UNNAMED, GraphFile, JobFile, Manifest, Prepare


@dataclass(frozen=True)
class Split:
    """A stage that begins with what its ``source`` holds before ``epoch``."""

    stage: str
    source: str
    epoch: int


@dataclass(frozen=True)
class Graphs:
    first: JobFile | None
    later: tuple[GraphFile, ...] = ()
    """The oldest that is still there first, without a gap; also those that never counted."""

    @property
    def newest(self) -> int:
        return self.later[-1].version if self.later else 0

    def knows(self, version: int) -> bool:
        return version == 0 or any(one.version == version for one in self.later)

    def before(self, version: int, *, live: bool = False) -> list[int]:
        """This version and those that it came from and that are known, the newest first; if ``live``, only as far as
        every shape of state was kept: what the log has in terms of any of those goes on in terms of the next."""
        known = {one.version: one for one in self.later}
        found = [version]
        while version in known and (known[version].live or known[version].kept or not live):
            version = known[version].follows
            if version and version not in known:
                break
            found.append(version)
        return found

    def splits(self, version: int) -> list[Split]:
        """All that happened on the way to this version, as far as it is known, the oldest first."""
        lived = self.before(version, live=True)
        return [
            Split(stage, source, one.splits_at)
            for one in self.later
            if one.version in lived and one.splits_at is not None
            for stage, source in one.splits.items()
        ]

    def notes(self) -> tuple[dict[str, str], list[dict[str, Any]]]:
        """What jobs call their stages where the store calls them otherwise, and what was changed while they ran."""
        if self.later:
            return self.later[-1].names, self.later[-1].updates
        return (self.first.names if self.first is not None else {}), []

    def version_of(self, prepare: Prepare) -> int:
        """The graph by which an epoch was finished: the one that its prepare names, unless that failed and a later one
        mended it. Prepares of old that name none are of the newest graph that had begun by then."""
        epoch, level = prepare.fence.epoch, prepare.level
        mended = [one.version for one in self.later if epoch == one.epoch + 1 and level <= one.mends]
        if mended:
            return max(mended)
        if prepare.graph == UNNAMED:
            return max((one.version for one in self.later if one.epoch < epoch), default=0)
        return prepare.graph

    def stages(self, version: int) -> Sequence[Mapping[str, Any]]:
        """The plain stage plans of a version; none if it is not known, or is from before they were written down."""
        if version == 0:
            return self.first.stages if self.first is not None else ()
        return next((one.stages for one in self.later if one.version == version), ())

    def version_of_checkpoint(self, manifest: Manifest, version: int) -> int:
        """The graph that a checkpoint has the stages of, for a job of that ``version``: those of old say none, and are
        from before any change was made while a job ran."""
        return self.before(version, live=True)[-1] if manifest.graph is None else manifest.graph
