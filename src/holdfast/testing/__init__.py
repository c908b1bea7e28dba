"""Test a job without Spark: feed it rows, step by epochs, move the clock, crash it, compare. See ``docs/testing.md``."""

from holdfast.testing.comparing import equal
from holdfast.testing.job import Job
from holdfast.testing.recovery import PLACES
from holdfast.testing.run import Run
from holdfast.testing.values import at

__all__ = ["PLACES", "Job", "Run", "at", "equal"]
