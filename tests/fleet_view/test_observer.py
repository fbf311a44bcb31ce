"""The observer folds messages into one view: letters that stay, rounds, alerts that go by themselves."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ofl_iot.fleet_view import observer as machine
from ofl_iot.fleet_view.records import Memory, Past
from ofl_iot.fleet_view.view import decode_view, encode_view
from tests.fleet_view.fleet import MEMBERS, Fleet

CLOSED = {"truck-1": ("truck-1", "truck-2"), "truck-3": ("truck-3", "truck-4")}


def kinds(fleet: Fleet) -> list[str]:
    return [each.kind for each in fleet.view().alerts]


def test_the_first_view_of_a_quiet_fleet_is_empty_and_says_so() -> None:
    view = Fleet(settle=False).view()
    assert view.devices == view.clusters == view.rounds == view.alerts == ()
    assert view.federation.id == "depot"
    assert view.federation.protection.state is None
    assert view.observer.link == "up"
    assert decode_view(encode_view(view)) == view


def test_a_letter_survives_a_change_of_the_leader_and_the_event_says_why() -> None:
    fleet = Fleet()
    assert [(each.id, each.leader) for each in fleet.view().clusters] == [("A", "truck-1"), ("B", "truck-3")]
    fleet.cluster(0, "truck-2", "truck-1", term=2, previous="truck-1", reason="offline")
    view = fleet.view()
    assert [(each.id, each.leader, each.previous) for each in view.clusters] == [
        ("A", "truck-2", "truck-1"),
        ("B", "truck-3", None),
    ]
    assert view.clusters[0].handovers_1h == 1
    assert view.events[0].text == "truck-2 leads cluster A now: truck-1 went offline"
    assert view.device("truck-1").role == "member"  # type: ignore[union-attr]


def test_when_the_fleet_is_clustered_anew_letters_stay_with_their_leaders() -> None:
    fleet = Fleet()
    fleet.cluster(0, "truck-3", "truck-2", term=2)
    fleet.cluster(1, "truck-1", "truck-4", term=2)
    assert {each.id: each.leader for each in fleet.view().clusters} == {"A": "truck-1", "B": "truck-3"}
    fleet.cluster(0, "truck-3", "truck-1", "truck-2", "truck-4", clusters=1, term=3)
    assert {each.id: each.leader for each in fleet.view().clusters} == {"B": "truck-3"}


def test_a_round_is_open_then_closed_and_its_accuracy_comes_later() -> None:
    fleet = Fleet()
    fleet.open_round(7, "truck-1", "truck-3")
    assert [(each.verdict, each.cluster) for each in fleet.view().rounds[-1].contributions] == [
        ("awaited", "A"),
        ("awaited", "B"),
    ]
    fleet.later(5)
    fleet.end_round(7, CLOSED)
    closed_s = fleet.now
    fleet.later(2)
    fleet.end_round(7, CLOSED, metrics={"accuracy": 0.75})
    closed = fleet.view().rounds[-1]
    assert (closed.state, closed.accuracy, closed.closed_s, closed.devices) == ("closed", 0.75, closed_s, 4)
    assert fleet.view().federation.protection.state == "on"
    fleet.open_round(7, "truck-1", retained=True)
    assert fleet.view().rounds[-1].state == "closed", "a retained opening of a round that is over says nothing"


def test_encryption_off_is_an_alert_at_once_and_over_when_it_is_on_again() -> None:
    fleet = Fleet()
    fleet.end_round(7, CLOSED)
    fleet.end_round(8, CLOSED, encrypted=False)
    fleet.later(1)
    assert kinds(fleet) == ["encryption-off"]
    assert fleet.view().alerts[0].severity == "critical"
    assert any(each.text == "Encryption is OFF, from round 8 on" for each in fleet.view().events)
    fleet.end_round(9, CLOSED)
    fleet.later(1)
    assert kinds(fleet) == []
    assert fleet.view().resolved[0].kind == "encryption-off"
    assert fleet.view().resolved[0].until_s is not None


def test_a_flapping_leader_a_flood_a_low_budget_and_other_versions_are_alerts() -> None:
    fleet = Fleet()
    for term, (leader, previous) in enumerate((("truck-2", "truck-1"), ("truck-1", "truck-2")) * 2, 2):
        fleet.cluster(0, leader, previous, term=term, previous=previous, reason="offline")
    fleet.refuse("truck-3", "truck-4", "flood", dropped=4000)
    fleet.vitals("truck-2", budget_left=0.05)
    fleet.status("truck-3", software="0.1.0")
    fleet.vitals("truck-3", version="0.1.0")
    fleet.later(1)
    assert kinds(fleet) == ["flood", "leader-flapping", "budget-low", "version-skew"]
    fleet.later(3700)
    assert "leader-flapping" not in kinds(fleet)


def test_what_the_broker_retained_brings_no_time_and_no_event() -> None:
    fleet = Fleet(settle=False)
    fleet.status("truck-1", retained=True)
    fleet.vitals("truck-1", held_back="heat", retained=True)
    fleet.end_round(7, {"truck-1": ("truck-1",)}, retained=True)
    view = fleet.view()
    assert (view.devices[0].since_s, view.devices[0].last_seen_s) == (None, None)
    assert view.rounds[0].closed_s is None
    assert view.events == ()


def test_a_restarted_observer_shows_the_same() -> None:
    fleet = Fleet()
    fleet.end_round(7, CLOSED)
    fleet.later(30)
    fleet.status("truck-2", online=False)
    fleet.refuse("truck-3", "truck-4", "flood")
    fleet.later(1)
    before, page = fleet.view(), fleet.observer.details("truck-2", fleet.now)
    kept = msgspec.json.decode(msgspec.json.encode(fleet.observer.memory), type=Memory)
    past = Past(
        memory=kept,
        rounds=list(before.rounds),
        events=list(before.events),
        bins={name: list(each) for name, each in fleet.observer.bins.items()},
        open_alerts=list(before.alerts),
        resolved=list(before.resolved),
        began_s=fleet.now - before.observer.history_s if before.observer.history_s else None,
    )
    again = Fleet(past, settle=False)
    again.now = fleet.now
    for name in MEMBERS:
        again.status(name, online=name != "truck-2", retained=True)
    after = again.view()
    assert after.devices == before.devices
    assert (after.clusters, after.rounds, after.events, after.alerts) == (
        before.clusters,
        before.rounds,
        before.events,
        before.alerts,
    )
    assert again.observer.details("truck-2", again.now) == page


def test_a_day_of_a_device_tells_contact_uploads_leaders_and_what_stopped_it() -> None:
    fleet = Fleet()
    fleet.later(900)
    fleet.vitals("truck-2", sent_chunks=5, bytes_up=40_000)
    fleet.later(450)
    fleet.status("truck-2", online=False)
    fleet.later(460)
    page = fleet.observer.details("truck-2", fleet.now)
    assert page is not None
    assert page.contact[0] is None, "the observer was not there"
    assert page.contact[-3:-1] == (1.0, 0.5)
    assert sum(page.upload_bytes) == 40_000
    assert page.leaders[-1].leader == "truck-1"
    assert page.stops[-1].kind == "offline"
    assert fleet.observer.details("nobody", fleet.now) is None


def test_while_the_observer_is_away_nothing_is_counted_as_seen() -> None:
    fleet = Fleet()
    fleet.later(60)
    fleet.observer.unlinked("the broker went away", fleet.now)
    fleet.later(1800)
    page = fleet.observer.details("truck-1", fleet.now)
    assert page is not None
    assert page.contact[-1] is None
    assert fleet.view().observer.link == "down"
    assert "lost its link" in fleet.view().events[0].text


def test_the_sequence_grows_with_what_is_said_and_rests_with_it() -> None:
    fleet = Fleet()
    fleet.later(20)
    before = fleet.view().seq
    fleet.later(3)
    assert fleet.view().seq == before
    fleet.vitals("truck-1", sent_chunks=1)
    assert fleet.view().seq > before


def test_invented_names_and_hostile_texts_stay_bounded_and_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    monkeypatch.setattr(machine, "MAX_DEVICES", 6)
    for number in range(20):
        fleet.status(f"invented-{number}")
    assert len(fleet.view().devices) == 6
    fleet.refuse("truck-1", "truck-2", "refused", "<img src=x>\x1b[31m\nnext line " + "x" * 100)
    text = fleet.view().events[0].text
    assert "\x1b" not in text
    assert "\n" not in text


names = st.sampled_from([*MEMBERS, "truck-5"])
spoken = st.one_of(
    st.tuples(st.just("status"), names, st.booleans(), st.booleans()),
    st.tuples(st.just("vitals"), names, st.sampled_from(["", "spent", "heat", "x"]), st.integers(0, 5)),
    st.tuples(st.just("cluster"), st.integers(0, 3), names, st.integers(1, 3)),
    st.tuples(st.just("refuse"), names, names, st.sampled_from(["flood", "wrong-model", "y"])),
    st.tuples(st.just("round"), st.integers(1, 9), st.booleans(), st.booleans()),
    st.tuples(st.just("later"), st.floats(0, 40), st.none(), st.none()),
)


@given(st.lists(spoken, max_size=25))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_said_the_view_is_whole_and_each_device_has_one_reason(said: list[tuple[object, ...]]) -> None:
    fleet = Fleet()
    for what, a, b, c in said:
        if what == "status":
            fleet.status(a, online=b, retained=c)  # type: ignore[arg-type]
        elif what == "vitals":
            fleet.vitals(a, held_back=b, sent_chunks=c)  # type: ignore[arg-type]
        elif what == "cluster":
            fleet.cluster(a, b, clusters=c, previous="truck-1", reason="offline")  # type: ignore[arg-type]
        elif what == "refuse":
            fleet.refuse(a, b, c)  # type: ignore[arg-type]
        elif what == "round":
            fleet.end_round(a, CLOSED, closed=b, encrypted=c)  # type: ignore[arg-type]
        else:
            fleet.later(a)  # type: ignore[arg-type]
    view = fleet.view()
    assert decode_view(encode_view(view)) == view
    assert len({each.id for each in view.clusters}) == len(view.clusters)
    assert all(each.why.code and each.state for each in view.devices)
    assert [each.id for each in view.devices] == sorted({each.id for each in view.devices})


def test_a_round_costs_what_devices_said_since_the_round_before() -> None:
    fleet = Fleet()
    fleet.vitals("truck-1", bytes_up=100, bytes_down=10)
    fleet.vitals("truck-2", bytes_up=1000, bytes_down=0)
    fleet.end_round(1, CLOSED)
    assert fleet.view().rounds[-1].bytes.devices_up is None, "the observer came while it ran"
    fleet.vitals("truck-1", bytes_up=150, bytes_down=15)
    fleet.vitals("truck-2", bytes_up=1700, bytes_down=0)
    fleet.vitals("truck-2", bytes_up=7, bytes_down=3)
    fleet.end_round(2, CLOSED)
    cost = fleet.view().rounds[-1].bytes
    assert (cost.leaders_up, cost.devices_up, cost.down) == (50, 707, 8)
    fleet.end_round(2, CLOSED, metrics={"accuracy": 0.5})
    assert fleet.view().rounds[-1].bytes == cost
    fleet.end_round(3, CLOSED)
    assert fleet.view().rounds[-1].bytes.down is None, "nobody told anything"
