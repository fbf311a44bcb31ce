"""One browser for the tests of the page, and the recorded fleet served to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.dashboard.fleets import ChangingFleet, recorded_view

if TYPE_CHECKING:
    from tests.dashboard.browsing import Page, Stage


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One browser for all tests; skipped where there is none."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    from tests.dashboard.browsing import CHROMEDRIVER, CHROMIUM, Page, chromium

    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip("chromium and chromedriver are not installed")
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield Page(driver)


@pytest.fixture
def fleet() -> ChangingFleet:
    return ChangingFleet(recorded_view())


@pytest.fixture
def stage(page: Page, fleet: ChangingFleet) -> Iterator[Stage]:
    """The recorded fleet, served; afterwards: nothing in the console, no request to another host."""
    from tests.dashboard.browsing import staged

    page.size(1440, 900)
    page.console()
    page.hosts()
    with staged(fleet) as stage:
        yield stage
        page.driver.get("about:blank")
        assert page.console() == []
        assert page.hosts() <= {stage.url.partition("//")[2], ""}
