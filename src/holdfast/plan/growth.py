"""Which stages keep rows for ever: what a person should be told before the disk and the memory tell them."""

from __future__ import annotations

from holdfast.operators.build import Spec
from holdfast.operators.distinct import DistinctSpec
from holdfast.operators.join import JoinSpec


def unbounded(spec: Spec) -> str | None:
    """Why this stage's state grows with every row, and what bounds it; None where it does not."""
    if isinstance(spec, JoinSpec) and None in (spec.before, spec.after):
        return "joins without a time bound, so every row of both sides is kept: join(…, time=…, within='1 hour')"
    if isinstance(spec, DistinctSpec) and spec.within is None and spec.bloom is None:
        return "remembers every key for ever: distinct(time=…, within='1 day'), or distinct(error=0.01, expected=…)"
    return None
