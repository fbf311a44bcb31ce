"""The page in a real browser: hostile texts, figures nobody told, the words of the terminal, a thousand devices."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from ofl_iot.fleet_view import wording
from ofl_iot.fleet_view.view import DeviceView, EventView, FleetView, Why
from tests.dashboard.browsing import Page, Stage, staged
from tests.dashboard.fleets import REPLACE, ChangingFleet, large_view, recorded_view

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>'\"`{x}&lt;"
MOST_NODES = 8000


def hostile_view() -> FleetView:
    """The recorded fleet, with markup and script in every text that a party may choose."""
    view = recorded_view()
    why = Why(code="user-code", text="It fails: {what} {x}", values={"what": HOSTILE})
    device = REPLACE(view.devices[0], why=why, type=HOSTILE, version=HOSTILE, model=HOSTILE, cluster="A")
    named = REPLACE(device, id=HOSTILE)
    clusters = tuple(
        REPLACE(each, previous=HOSTILE, elected=REPLACE(each.elected, reason=HOSTILE, runner_up=HOSTILE))
        for each in view.clusters
    )
    contributions = tuple(REPLACE(each, reason=HOSTILE, leader=HOSTILE) for each in view.rounds[-1].contributions)
    rounds = (*view.rounds[:-1], REPLACE(view.rounds[-1], reason=HOSTILE, stage=HOSTILE, contributions=contributions))
    alerts = tuple(
        REPLACE(each, title=HOSTILE, detail=HOSTILE, todo=HOSTILE, command=HOSTILE, link="javascript:alert(1)")
        for each in view.alerts
    )
    events = tuple(EventView(each.at_s, "constructor", HOSTILE, HOSTILE) for each in view.events)
    federation = REPLACE(view.federation, id=HOSTILE)
    return REPLACE(
        view,
        devices=(named, device, *view.devices[1:]),
        clusters=clusters,
        rounds=rounds,
        alerts=alerts,
        events=events,
        federation=federation,
    )


def test_markup_from_a_device_is_text(page: Page, stage: Stage, fleet: ChangingFleet) -> None:
    stage.change(
        fleet.set,
        **{
            name: getattr(hostile_view(), name)
            for name in ("devices", "clusters", "rounds", "alerts", "events", "federation")
        },
    )
    shown = {
        "#/fleet": HOSTILE,
        "#/fleet?mode=table": HOSTILE,
        "#/rounds": HOSTILE,
        "#/alerts": HOSTILE,
        "#/learning": "Learning",
    }
    for view, text in shown.items():
        page.open(f"{stage.url}/{view}")
        page.until_live()
        assert text in page.text("main"), view
        assert (
            page.run("return document.querySelectorAll('main img, main script, [onerror], a[href^=javascript]').length")
            == 0
        )
        assert not page.driver.title.startswith("owned")
    assert page.text("#federation") == HOSTILE
    page.run("location.hash = '#/device/' + encodeURIComponent(arguments[0])", HOSTILE)
    page.until(lambda: page.text("h1") == HOSTILE, "the device's name")
    assert page.text(".big-why") == f"It fails: {HOSTILE} unknown"
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0


def test_the_browser_itself_refuses_markup_that_is_no_template(page: Page, stage: Stage) -> None:
    page.open(stage.url)
    page.until_live()
    fault = page.run(
        "try { document.body.innerHTML = '<b>x</b>'; return 'taken'; } catch (error) { return error.name; }"
    )
    assert fault == "TypeError"
    assert [line for line in page.console() if "TrustedHTML" not in line] == []


CASES: list[tuple[str, dict[str, object]]] = [
    ("{x:ago} {x:since}", {"x": 1000.0}),
    ("{x:span}", {"x": 37}), ("{x:span}", {"x": 15840}), ("{x:span}", {"x": 172800}), ("{x:span}", {"x": 36001}),
    ("{x:share}", {"x": 0.004}), ("{x:share}", {"x": 0.51}), ("{x:share}", {"x": 0}),
    ("{x:size}", {"x": 5872026}), ("{x:size}", {"x": 999}), ("{x:size}", {"x": 1100000000}),
    ("{x:count} {x}", {"x": 4118}), ("{x:epsilon} {x}", {"x": 7.5}), ("{x} {y} {x:nonsense}", {"x": 0.125}),
    ("{a}", {"a": "{b}", "b": "secret"}), ("{toString} {__proto__}", {}), ("no slot, {X}, {x:}", {"x": 1}),
]  # fmt: skip


def test_reasons_read_the_same_here_and_in_the_terminal(page: Page, stage: Stage) -> None:
    page.open(stage.url)
    page.until_live()
    script = """const [cases, now, done] = arguments;
      import('/page/text.js').then((m) => done(cases.map(([text, values]) => m.fill(text, values, now))));"""
    shown = page.driver.execute_async_script(script, json.loads(json.dumps(CASES)), 4600.0)
    assert shown == [wording.fill(text, values, 4600.0) for text, values in CASES]  # type: ignore[arg-type]


def test_what_nobody_has_told_is_a_dash_and_no_fault(page: Page, stage: Stage, fleet: ChangingFleet) -> None:
    view = fleet.view()
    bare = tuple(
        DeviceView(id=f"bare-{number}", state="waiting", why=Why(code="no-contact", text="It waits."))
        for number in range(3)
    )
    empty = FleetView(
        seq=1,
        now_s=view.now_s,
        federation=REPLACE(
            view.federation,
            privacy=type(view.federation.privacy)(),
            protection=type(view.federation.protection)(),
            version=None,
            model=type(view.federation.model)(),
        ),
        observer=view.observer,
    )
    rest = {
        name: getattr(empty, name)
        for name in ("federation", "clusters", "rounds", "alerts", "resolved", "events", "broker")
    }
    stage.change(fleet.set, devices=bare, **rest)
    for path in (
        "#/fleet",
        "#/fleet?by=stale",
        "#/fleet?mode=table",
        "#/learning",
        "#/rounds",
        "#/alerts",
        "#/device/bare-1",
        "#/device/nobody",
    ):
        page.open(f"{stage.url}/{path}")
        page.until_live()
        assert "undefined" not in page.text("body")
        assert "NaN" not in page.text("body")
        assert "null" not in page.text("main")
    assert page.text("h1") == "No device is called nobody"


def test_a_thousand_devices_stay_light(page: Page) -> None:
    fleet = ChangingFleet(large_view())
    page.size(1440, 900)
    with staged(fleet) as stage:
        page.open(stage.url)
        page.until_live()
        page.until(lambda: page.run("return document.querySelectorAll('.hex').length") == 1000, "a thousand cells")
        assert page.run("return document.querySelectorAll('*').length") < MOST_NODES
        page.watch_shifts()
        page.driver.execute_cdp_cmd("Performance.enable", {})
        began = _seconds(page)
        for number in range(12):
            devices = [
                REPLACE(each, last_upload_s=fleet.view().now_s, budget_left=number / 20)
                if place % 50 == number
                else each
                for place, each in enumerate(fleet.view().devices)
            ]
            stage.change(fleet.set, devices=tuple(devices))
            page.until(lambda: _seq(page, fleet), "the change")
        spent = {name: (seconds - began[name]) / 12 for name, seconds in _seconds(page).items()}
        assert spent["ScriptDuration"] + spent["LayoutDuration"] + spent["RecalcStyleDuration"] < 0.1, spent
        assert page.shifted() < 0.001
        page.open(f"{stage.url}/#/fleet?mode=table")
        page.until(lambda: page.run("return document.querySelectorAll('.devices tbody tr').length > 5"), "the table")
        assert page.run("return document.querySelectorAll('.devices tbody tr').length") < 60


def _seconds(page: Page) -> dict[str, float]:
    """Seconds of script, layout and style since the page was loaded."""
    metrics = page.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return {
        each["name"]: each["value"]
        for each in metrics
        if each["name"] in {"ScriptDuration", "LayoutDuration", "RecalcStyleDuration", "TaskDuration"}
    }


def _seq(page: Page, fleet: ChangingFleet) -> bool:
    """Whether the page's time is the view's."""
    now: float = page.driver.execute_async_script(
        "const done = arguments[0]; import('/page/store.js').then((m) => done(m.store.now));"
    )
    return now == fleet.view().now_s
