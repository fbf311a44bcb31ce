"""A headless Chromium, and a dashboard in a thread of its own that tests change, stop and start again."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from ofl_agents.dashboard.server import Place, Served, serving
from ofl_iot.fleet_view.source import FleetSource

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
CHROMEDRIVER = shutil.which("chromedriver")
WAIT_S = 20.0
"""Only reached when something is wrong; the machine may be busy."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
SHIFTS = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
}).observe({ type: 'layout-shift', buffered: false });
"""


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """A browser with a new profile that keeps console messages and requests."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(CHROMEDRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


@dataclass
class Page:
    """What a reader does with the page."""

    driver: webdriver.Chrome
    requests: set[str] = field(default_factory=set)

    def open(self, url: str) -> None:
        """Load an address anew, also if only what stands behind # differs."""
        self.driver.get("about:blank")
        self.driver.get(url)

    def size(self, width: int, height: int) -> None:
        """Make the window so large; below 640 px it is a phone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 640}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def run(self, script: str, *arguments: object) -> Any:
        """Return what a script returns."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """Return the text of the first element, or nothing if there is none."""
        found: str = self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)
        return found

    def find(self, selector: str) -> WebElement:
        """Return the first element, once it is there."""
        self.until(lambda: self.driver.find_elements(By.CSS_SELECTOR, selector), selector)
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self, attribute: str = "key") -> str | None:
        """Return a data attribute of what has the focus."""
        found: str | None = self.run("return document.activeElement?.dataset[arguments[0]] ?? null", attribute)
        return found

    def until(self, condition: Callable[[], object], what: str = "it", limit_s: float = WAIT_S) -> float:
        """Wait until it holds; return after how many seconds."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < limit_s, (
                f"not within {limit_s:g} s: {what}; shown: {self.text('main')[:300]}"
            )
            time.sleep(0.02)
        return time.monotonic() - began

    def until_live(self) -> None:
        """Wait until the page follows."""
        self.until(lambda: self.text("#live-text") == "Live", "Live")

    def watch_shifts(self) -> None:
        """Begin to add up how far things move that nobody touched."""
        self.run(SHIFTS)

    def shifted(self) -> float:
        """Return the layout shift since `watch_shifts`."""
        found: float = self.run("return window.shifted")
        return found

    def console(self) -> list[str]:
        """Return console messages since the last call."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]

    def hosts(self) -> set[str]:
        """Return the hosts of all requests since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        return {urlsplit(url).netloc for url in urls if urlsplit(url).scheme not in {"about", "chrome", "data"}}


TAB, ENTER, ESCAPE, RIGHT, DOWN = Keys.TAB, Keys.ENTER, Keys.ESCAPE, Keys.ARROW_RIGHT, Keys.ARROW_DOWN


class Stage:
    """Serves a fleet source from a loop in a thread."""

    def __init__(self, source: FleetSource, place: Place | None = None) -> None:
        self._source = source
        self._place = place or Place(port=0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stage", daemon=True)
        self._thread.start()
        self._context: Any = None
        self.served: Served
        self.start()

    @property
    def url(self) -> str:
        """The page's address, always the same one."""
        return self.served.url

    def start(self) -> None:
        """Serve, at the same port as before."""
        if self._context is None:
            self._context = serving(self._source, self._place)
            self.served = self._call(self._context.__aenter__())
            self._place = Place(port=urlsplit(self.served.url).port or 0, token=self._place.token)

    def stop(self) -> None:
        """Stop serving."""
        context, self._context = self._context, None
        if context is not None:
            self._call(context.__aexit__(None, None, None))

    def change(self, change: Callable[..., None], *arguments: Any, **changes: Any) -> None:
        """Change the source on its loop."""

        async def on_loop() -> None:
            change(*arguments, **changes)

        self._call(on_loop())

    def close(self) -> None:
        """Stop serving, end the thread."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)


@contextmanager
def staged(source: FleetSource, place: Place | None = None) -> Iterator[Stage]:
    """Serve a source as long as the block lasts."""
    stage = Stage(source, place)
    try:
        yield stage
    finally:
        stage.close()
