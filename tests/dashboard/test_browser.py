"""The page in a real browser: what it shows, how it follows, by keyboard, on a phone, without its server."""

from __future__ import annotations

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from ofl_agents.dashboard.server import Place
from ofl_iot.fleet_view import wording
from ofl_iot.fleet_view.metrics import exposition
from ofl_iot.fleet_view.terminal import status_lines, top_rows
from ofl_iot.fleet_view.view import EventView, Why
from tests.dashboard.browsing import DOWN, ENTER, ESCAPE, RIGHT, TAB, Page, Stage, staged
from tests.dashboard.fleets import REPLACE, ChangingFleet

VIEWS = (
    "#/fleet",
    "#/fleet?mode=table",
    "#/fleet?by=budget",
    "#/learning",
    "#/rounds/146",
    "#/alerts",
    "#/device/truck-03",
)


def sideways(page: Page) -> int:
    """How many pixels the page is wider than its window."""
    width: int = page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width


@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (1024, "dark"), (1440, "light")])
def test_every_view_fits_its_window_and_says_what_it_is(page: Page, stage: Stage, width: int, theme: str) -> None:
    page.size(width, 844)
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    page.open(f"{stage.url}/")
    page.run("localStorage.clear()")
    for view in VIEWS:
        page.open(f"{stage.url}/{view}")
        page.until_live()
        title = {"fleet": "Fleet", "device": "truck-03"}.get(
            view[2:].split("/")[0].split("?")[0], view[2:].split("/")[0].title()
        )
        page.until(lambda wanted=title: page.text("h1") == wanted, title)
        assert sideways(page) <= 0, (view, width)
        assert page.run("return document.documentElement.dataset.theme") == theme


def test_page_status_top_and_metrics_tell_the_same_figures(page: Page, stage: Stage, fleet: ChangingFleet) -> None:
    page.open(stage.url)
    page.until_live()
    view = fleet.view()
    online = sum(device.online for device in view.devices)
    assert page.text("#tiles a:nth-child(1) .big") == f"{online} of {len(view.devices)}"
    last = [each for each in view.rounds if each.state == "closed"][-1]
    assert last.accuracy is not None
    assert page.text("#tiles a:nth-child(2) .big") == f"{last.accuracy * 100:.1f} %"
    assert page.text("#tiles a:nth-child(6) .big") == "On any 4 of 6"
    assert page.text("#alert-count") == str(sum(alert.severity != "info" for alert in view.alerts))
    for state in {device.state for device in view.devices}:
        count = sum(device.state == state for device in view.devices)
        assert page.text(f'#legend [data-state="{state}"] b') == str(count), state
    told = "\n".join(status_lines(view))
    assert f"online       {online} of {len(view.devices)}" in told
    assert f"accuracy     {page.text('#tiles a:nth-child(2) .big')}" in told
    seconds = page.text("#tiles a:nth-child(4) .sub").rpartition(", ")[2]
    assert f"{seconds} a round" in told
    assert page.text("#tiles a:nth-child(5) .big").replace(" left, median", " of the budget left (median)") in told
    metrics = exposition(view)
    assert f'ofl_accuracy_ratio{{federation="north-depot"}} {last.accuracy}' in metrics
    for state in {device.state for device in view.devices}:
        shown = page.text(f'#legend [data-state="{state}"] b')
        assert f"{shown} {state}" in told
        assert len(top_rows(view, 100, state)) == int(shown)
    device = view.device("truck-03")
    assert device is not None
    page.open(f"{stage.url}/#/device/truck-03")
    page.until(lambda: "What to do" in page.text("#why"), "advice")
    assert wording.sentence(device.why, view.now_s) == page.text(".big-why")
    assert device.why.todo is not None
    assert page.text(".cmd code") == device.why.todo.command
    assert page.run("return document.querySelectorAll('.tl .contact').length") > 1


def test_a_handover_moves_two_cells_and_says_why_without_moving_anything_else(
    page: Page, stage: Stage, fleet: ChangingFleet
) -> None:
    page.open(stage.url)
    page.until_live()
    page.watch_shifts()
    view = fleet.view()
    cluster = next(each for each in view.clusters if each.id == "A")
    heir = next(each.id for each in view.devices if each.cluster == "A" and each.id != cluster.leader)
    elected = REPLACE(cluster.elected, reason="first deputy online after gate-01 was away beyond its grace of 30 s")
    change = {"leader": heir, "previous": cluster.leader, "term": 90, "since_s": view.now_s, "elected": elected}
    clusters = tuple(REPLACE(each, **change) if each.id == "A" else each for each in view.clusters)
    event = EventView(view.now_s, "handover", "cluster A", f"{heir} leads in place of {cluster.leader} (term 90)")
    stage.change(fleet.set, clusters=clusters, events=(event, *view.events))
    title = "[data-cluster=A] h3"
    assert page.until(lambda: page.text(title) == f"A{heir} leads", "the heir", limit_s=3.0) < 3.0
    assert heir in page.text("#feed")
    assert f"Took over from {cluster.leader}" in page.text("[data-cluster=A] .note")
    page.until(lambda: heir in page.text("#say"), "the announcement")
    for number in range(12):
        stage.change(fleet.set_device, "truck-01", last_upload_s=view.now_s + number, budget_left=0.5 - number / 100)
        seen = f"{50 - number} %"
        if number == 0:
            page.find('[data-id="truck-01"]').click()
        page.until(lambda wanted=seen: wanted in page.text("#peek"), seen)
    assert page.shifted() < 0.001
    page.open(f"{stage.url}/#/device/{heir}")
    page.until(lambda: "beyond its grace of 30 s" in page.text("#why"), "why it leads")


def test_devices_come_go_and_change_their_clusters(page: Page, stage: Stage, fleet: ChangingFleet) -> None:
    page.open(stage.url)
    page.until_live()
    view = fleet.view()
    new = REPLACE(view.devices[0], id="newcomer-1", cluster=None, role=None)
    stage.change(fleet.set, devices=(new, *view.devices[2:]))
    page.until(lambda: page.text('[data-cluster=""] h3') == "In no cluster yet", "the newcomer")
    gone = view.devices[1].id
    assert page.run("return document.querySelector(`[data-id='${arguments[0]}']`)", gone) is None
    stage.change(fleet.set, devices=(REPLACE(new, cluster="B"), *view.devices[2:]))
    page.until(
        lambda: page.run("return !!document.querySelector('[data-cluster=B] [data-id=newcomer-1]')"), "its cluster"
    )
    assert page.run("return !document.querySelector('[data-cluster=\"\"]')")
    stage.change(fleet.set, devices=(), clusters=())
    page.until(lambda: "Nobody has said anything yet" in page.text("main"), "the empty state")
    stage.change(fleet.set, devices=view.devices, clusters=view.clusters)
    page.until(lambda: page.text("[data-cluster=A] h3"), "the fleet again")


def test_by_keyboard_alone_from_the_tiles_to_a_refused_devices_command_and_back(
    page: Page, stage: Stage, fleet: ChangingFleet
) -> None:
    page.open(stage.url)
    page.until_live()
    page.run("document.querySelector('[data-key=\"t-Online\"]').focus()")
    for _ in range(40):
        page.press(TAB)
        if page.focused() == "f-refused":
            break
    page.press(ENTER)
    page.until(
        lambda: (
            page.focused() == "f-refused" and page.find("[data-key=f-refused]").get_attribute("aria-pressed") == "true"
        ),
        "the filter",
    )
    assert page.driver.current_url.endswith("#/fleet?state=refused")
    for _ in range(12):
        page.press(TAB)
        if page.focused("id"):
            break
    start = page.focused("id")
    page.press(DOWN)
    page.press(RIGHT)
    chosen = page.focused("id")
    assert chosen is not None
    device = fleet.view().device(chosen)
    assert device is not None
    assert device.state == "refused", (start, chosen)
    page.press(ENTER)
    page.until(lambda: page.text("#peek h2") == chosen, "the glance")
    stage.change(fleet.set_device, chosen, last_seen_s=fleet.view().now_s)
    stage.change(fleet.set_device, "truck-01", online=False, state="offline")
    page.until(lambda: page.find("[data-id=truck-01]").get_attribute("class").count("s-offline"), "the change")
    assert page.focused("id") == chosen
    page.press(ENTER)
    page.until(lambda: page.text("h1") == chosen, "the device")
    page.until(lambda: page.text(".cmd code"), "the command")
    for _ in range(30):
        page.press(TAB)
        if page.focused() == "copy":
            break
    stage.change(fleet.set_device, chosen, budget_left=0.01, bytes=REPLACE(device.bytes, up=9_999_999))
    page.until(lambda: "9.5 MiB" in page.text("#facts"), "new bytes")
    assert page.focused() == "copy"
    page.press(ESCAPE)
    page.until(lambda: page.text("h1") == "Fleet", "the fleet")
    page.press("g", "r")
    page.until(lambda: page.text("h1") == "Rounds", "the rounds")
    page.press("?")
    page.until(lambda: page.run("return document.querySelector('#help').open"), "the keys")


def test_a_page_that_loses_its_server_says_so_and_goes_on_by_itself(
    page: Page, stage: Stage, fleet: ChangingFleet
) -> None:
    page.open(f"{stage.url}/#/fleet")
    page.until_live()
    page.run("window.mark = 'not reloaded'")
    stage.stop()
    took = page.until(
        lambda: not page.run("return document.querySelector('#banner').hidden"), "the banner", limit_s=10.0
    )
    assert took < 10.0
    assert "No word from the observer" in page.text("#banner")
    assert page.run("return document.body.classList.contains('stale')")
    before = page.run("return [...document.querySelectorAll('time')].map((t) => t.textContent)")
    stage.change(
        fleet.set_device, "truck-01", online=False, state="offline", why=Why(code="offline", text="It is gone.")
    )
    assert page.run("return [...document.querySelectorAll('time')].map((t) => t.textContent)") == before
    stage.start()
    page.until_live()
    page.until(lambda: "s-offline" in page.find("[data-id=truck-01]").get_attribute("class"), "what changed meanwhile")
    assert page.run("return [window.mark, document.querySelector('#banner').hidden]") == ["not reloaded", True]
    unreachable = [
        line for line in page.console() if "ERR_CONNECTION_REFUSED" in line or "INCOMPLETE" in line or "EMPTY" in line
    ]
    assert len(unreachable) >= 0


def test_an_observer_without_a_broker_is_told_too(page: Page, stage: Stage, fleet: ChangingFleet) -> None:
    page.open(stage.url)
    page.until_live()
    stage.change(fleet.set, observer=REPLACE(fleet.view().observer, link="down"))
    page.until(lambda: "no link to the broker" in page.text("#banner"), "the banner")
    stage.change(fleet.set, observer=REPLACE(fleet.view().observer, link="up"))
    page.until(lambda: page.run("return document.querySelector('#banner').hidden"), "no banner")
    assert not page.run("return document.body.classList.contains('stale')")


def test_a_token_opens_the_page_once_from_its_address_or_from_the_form(page: Page, fleet: ChangingFleet) -> None:
    with staged(fleet, Place(port=0, token="twenty-letters-at-least")) as stage:  # noqa: S106  # opens nothing
        page.open(stage.url)
        page.until(lambda: page.text("h1") == "Which token?", "the form")
        page.find("#token").send_keys("wrong", ENTER)
        page.until(lambda: "not the token" in page.text(".fault"), "the refusal")
        page.find("#token").send_keys("twenty-letters-at-least", ENTER)
        page.until_live()
        page.driver.delete_all_cookies()
        page.open(stage.served.invitation().split()[1])
        page.until_live()
        assert page.driver.current_url == f"{stage.url}/#/fleet"
        assert page.run("return document.cookie") == ""
