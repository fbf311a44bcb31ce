"""What a page is sent, and that changes taken in one after the other make the present view."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ofl_agents.dashboard.shown import EVENTS, ROUNDS, ShownView
from ofl_iot.fleet_view.view import EventView, FleetView
from tests.dashboard.fleets import REPLACE, large_view, recorded_view


def merged(page: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    """What a page has after a change: the law that `page/store.js` follows."""
    result = {**page, **{name: value for name, value in delta.items() if not name.endswith("_gone")}}
    for name, key in (("devices", "id"), ("clusters", "id"), ("rounds", "round_no")):
        items = {item[key]: dict(item) for item in page[name]}
        for change in delta[name]:
            items[change[key]] = {**items.get(change[key], {}), **change}
        for gone in delta.get(f"{name}_gone", []):
            del items[gone]
        result[name] = list(items.values())
    result["rounds"] = sorted(result["rounds"], key=lambda each: each["round_no"])[-ROUNDS:]
    result["events"] = [*delta["events"], *page["events"]][:EVENTS]
    return result


def same(page: dict[str, Any], view: FleetView) -> bool:
    """Whether a page shows a view, whatever the order of its devices."""
    whole = ShownView(view).whole()
    order = lambda items: sorted(items, key=lambda item: str(item["id"]))  # noqa: E731
    devices = order(page["devices"]) == order(whole["devices"]) and order(page["clusters"]) == order(whole["clusters"])
    rest = [name for name in whole if name not in {"devices", "clusters"}]
    return devices and msgspec.json.encode([page[name] for name in rest]) == msgspec.json.encode(
        [whole[name] for name in rest]
    )


def test_a_page_is_sent_no_evidence_no_advice_and_no_contributors() -> None:
    view = recorded_view()
    contributions = tuple(REPLACE(each, contributors=("truck-01",)) for each in view.rounds[-1].contributions)
    whole = ShownView(REPLACE(view, rounds=(REPLACE(view.rounds[-1], contributions=contributions),))).whole()
    assert whole["devices"][0]["why"].keys() == {"code", "text", "values"}
    assert "contributors" not in whole["rounds"][0]["contributions"][0]
    assert len(whole["devices"]) == len(view.devices)


def test_a_thousand_devices_stay_below_a_megabyte() -> None:
    whole = msgspec.json.encode(ShownView(large_view()).whole())
    assert len(whole) < 1_100_000, len(whole)


def test_a_change_holds_only_what_changed() -> None:
    view = recorded_view()
    shown = ShownView(view)
    later = REPLACE(
        view, now_s=view.now_s + 1, devices=(REPLACE(view.devices[0], last_upload_s=5.0), *view.devices[1:])
    )
    delta = shown.update(later)
    assert delta == {
        "now_s": view.now_s + 1,
        "devices": [{"id": view.devices[0].id, "last_upload_s": 5.0}],
        "clusters": [],
        "rounds": [],
        "events": [],
    }
    assert shown.update(later)["devices"] == []


def test_new_evidence_alone_is_no_change_for_a_page() -> None:
    view = recorded_view()
    device = view.devices[0]
    later = REPLACE(view, devices=(REPLACE(device, why=REPLACE(device.why, evidence=())), *view.devices[1:]))
    assert ShownView(view).update(later)["devices"] == []


def test_a_value_that_is_no_longer_known_is_sent_as_null() -> None:
    view = recorded_view()
    later = REPLACE(view, devices=(REPLACE(view.devices[0], budget_left=None), *view.devices[1:]))
    assert ShownView(view).update(later)["devices"] == [{"id": view.devices[0].id, "budget_left": None}]


def test_events_are_sent_once_also_when_two_are_alike() -> None:
    view = recorded_view()
    shown = ShownView(view)
    new = EventView(view.now_s, "online", "truck-01", "back")
    later = REPLACE(view, events=(new, *view.events))
    assert shown.update(later)["events"] == [msgspec.to_builtins(new)]
    assert shown.update(later)["events"] == []


@settings(max_examples=40)
@given(st.data())
def test_changes_one_after_the_other_make_the_present_view(data: st.DataObject) -> None:
    view = recorded_view()
    view = REPLACE(view, devices=view.devices[:6], clusters=view.clusters[:3], rounds=view.rounds[:2])
    shown = ShownView(view)
    page = shown.whole()
    full = recorded_view()
    for second in range(1, data.draw(st.integers(1, 4)) + 1):
        names = data.draw(st.lists(st.integers(0, 9), unique=True))
        devices = tuple(
            REPLACE(
                full.devices[n],
                cluster=data.draw(st.sampled_from(["A", "B", None])),
                budget_left=data.draw(st.none() | st.floats(0, 1)),
            )
            for n in names
        )
        clusters = tuple(full.clusters[n] for n in data.draw(st.lists(st.integers(0, 5), unique=True)))
        event = EventView(view.now_s + second, "online", "fleet", f"event {second}")
        rounds = full.rounds[: data.draw(st.integers(4, len(full.rounds)))] if second > 1 else view.rounds
        changes = {
            "events": (event, *view.events),
            "alerts": view.alerts[second:],
            "rounds": max(rounds, view.rounds, key=len),
        }
        view = REPLACE(view, now_s=view.now_s + second, devices=devices, clusters=clusters, **changes)
        page = merged(page, shown.update(view))
        assert same(page, view)
