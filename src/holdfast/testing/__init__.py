"""Jobs tested without Spark: rows in, epoch by epoch, a clock to move, crashes at named places."""

from holdfast.testing.comparing import equal
from holdfast.testing.job import Job
from holdfast.testing.recovery import PLACES
from holdfast.testing.run import Run
from holdfast.testing.values import at

__all__ = ["PLACES", "Job", "Run", "at", "equal"]
