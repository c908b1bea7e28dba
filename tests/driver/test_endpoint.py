"""The master's door."""

from __future__ import annotations

import pytest

from holdfast.driver.endpoint import Desk
from holdfast.errors import PlanError


def test_an_address_of_another_machine_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match=r"cannot listen on '192\.0\.2\.1'.*\n.*Nothing was started.*\n.*listen="):
        Desk("192.0.2.1", "secret")
