"""The pytest plugin: strict phases in every test, and a manual clock as a fixture.

Imported in every pytest run of everybody who has stallwatch installed, so it imports nothing at the
top that it can do without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stallwatch.testing import ManualClock


def pytest_configure(config: pytest.Config) -> None:
    """Has phase violations raise, unless `STALLWATCH_PHASE_STRICT=0` says otherwise."""
    from stallwatch._stallwatch import set_strict_default

    before = set_strict_default(True)

    def restore() -> None:
        set_strict_default(before)

    config.add_cleanup(restore)


@pytest.fixture
def stallwatch_clock() -> Iterator[ManualClock]:
    """A `stallwatch.testing.ManualClock` that is in place during the test."""
    from stallwatch.testing import ManualClock

    with ManualClock() as clock:
        yield clock
