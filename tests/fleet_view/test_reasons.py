"""Each cause that `why` can name is brought about by what parties say, and told with evidence."""

from __future__ import annotations

import re

import pytest

from ofl_iot.fleet_view import wording
from ofl_iot.fleet_view.reasons import TEMPLATES
from ofl_iot.fleet_view.view import STATES
from ofl_iot.ids import COORDINATOR
from tests.fleet_view.fleet import BEGAN_S, OTHER, Fleet

CLOSED = {"truck-1": ("truck-1", "truck-2"), "truck-3": ("truck-3", "truck-4")}


def told(fleet: Fleet, name: str) -> tuple[str, str, str]:
    device = fleet.device(name)
    return device.state, device.why.code, wording.sentence(device.why, fleet.now)


def test_a_device_whose_chunks_are_in_the_last_rounds_contributes() -> None:
    fleet = Fleet()
    fleet.end_round(7, CLOSED)
    assert told(fleet, "truck-2") == ("contributing", "contributing", "It contributes: its chunks are in round 7.")
    assert any("round 7" in each.text for each in fleet.device("truck-2").why.evidence)
    for number in (8, 9, 10):
        fleet.end_round(number, {"truck-1": ("truck-1",)})
    assert told(fleet, "truck-2")[:2] == ("waiting", "no-contact")


def test_offline_since() -> None:
    fleet = Fleet()
    fleet.later(5)
    fleet.status("truck-2", online=False)
    fleet.later(40)
    assert told(fleet, "truck-2") == ("offline", "offline", "It is offline for 40 s.")
    assert fleet.device("truck-2").why.evidence[0].by == "broker"


def test_who_was_offline_before_the_observer_came_is_offline_since_nobody_knows_when() -> None:
    fleet = Fleet(settle=False)
    fleet.status("truck-2", online=False, retained=True)
    state, code, words = told(fleet, "truck-2")
    assert (state, code) == ("offline", "offline")
    assert "was not there to see" in words
    assert fleet.device("truck-2").since_s is None


def test_a_cluster_member_that_nobody_heard_is_told_apart() -> None:
    fleet = Fleet()
    fleet.cluster(0, "truck-1", "truck-2", "truck-9")
    assert told(fleet, "truck-9")[1:] == ("offline", TEMPLATES["never-seen"][1])


def test_its_leader_changed() -> None:
    fleet = Fleet()
    fleet.end_round(7, CLOSED)
    fleet.later(10)
    fleet.status("truck-1", online=False)
    fleet.cluster(0, "truck-2", "truck-1", "truck-4", term=2, previous="truck-1", reason="offline")
    fleet.later(3)
    state, code, words = told(fleet, "truck-4")
    assert (state, code) == ("waiting", "leader-changed")
    assert "truck-2 took over from truck-1 3 s ago" in words
    assert told(fleet, "truck-1")[1] == "offline"
    fleet.end_round(8, {"truck-2": ("truck-2", "truck-4")})
    assert told(fleet, "truck-4")[1] == "contributing"


def test_waiting_for_its_leader() -> None:
    fleet = Fleet()
    fleet.status("truck-3", online=False)
    state, code, words = told(fleet, "truck-4")
    assert (state, code) == ("waiting", "no-leader")
    assert "truck-3 is offline" in words
    fleet.status("truck-8")
    assert told(fleet, "truck-8")[1:] == ("no-leader", TEMPLATES["unassigned"][1])


def test_wrong_model_from_its_own_announcement_and_from_who_refuses_it() -> None:
    fleet = Fleet()
    fleet.status("truck-2", model=OTHER, difference="its tensor w is 7, the federation's is 100")
    fleet.refuse(COORDINATOR, "truck-2", "wrong-model", "it trains another model", dropped=212)
    device = fleet.device("truck-2")
    assert (device.state, device.why.code) == ("refused", "wrong-model")
    texts = [each.text for each in device.why.evidence]
    assert any("212 messages dropped by coordinator" in text for text in texts)
    assert any("its tensor w is 7" in text for text in texts)
    assert any("the federation's is digits" in text for text in texts)
    fleet.later(400)
    assert fleet.device("truck-2").why.code == "wrong-model", "its announcement still says so"


@pytest.mark.parametrize(
    ("code", "word"), [("block-size", "block_size"), ("flood", "sends far more"), ("refused", "by truck-1")]
)
def test_refused_because(code: str, word: str) -> None:
    fleet = Fleet()
    fleet.refuse("truck-1", "truck-2", code, "because of this")
    state, shown, words = told(fleet, "truck-2")
    assert (state, shown) == ("refused", code)
    assert word in words
    assert "because of this" in words
    assert fleet.device("truck-2").chunks.refused == 1
    fleet.later(301)
    assert fleet.device("truck-2").state == "waiting", "nobody refused it for five minutes"


def test_a_refusal_by_a_device_that_does_not_lead_is_not_believed() -> None:
    fleet = Fleet()
    fleet.refuse("truck-4", "truck-2", "flood")
    assert fleet.device("truck-2").state == "waiting"
    assert fleet.view().observer.dropped == 1
    fleet.refuse("truck-1", "nobody-knows-me", "flood")
    assert fleet.view().device("nobody-knows-me") is None


def test_budget_spent() -> None:
    fleet = Fleet()
    fleet.vitals("truck-2", held_back="spent", budget_left=0.0)
    assert told(fleet, "truck-2")[:2] == ("spent", "spent")
    assert fleet.device("truck-2").budget_left == 0.0
    assert [each.kind for each in fleet.view().alerts] == []
    fleet.later(1)
    assert [each.kind for each in fleet.view().alerts] == ["budget-spent"]


def test_hot() -> None:
    fleet = Fleet()
    fleet.vitals("truck-2", held_back="heat", temperature_c=92.0, max_temperature_c=90.0)
    assert told(fleet, "truck-2") == (
        "limited",
        "heat",
        "It rests because it is hot: 92 °C, and training stops above 90 °C.",
    )


@pytest.mark.parametrize(
    ("vitals", "code", "word"),
    [
        ({"held_back": "battery", "battery": 0.12}, "battery", "12 %"),
        ({"held_back": "no-data"}, "no-data", "no data"),
        ({"held_back": "user-code", "error": "OSError", "failures": 3}, "user-code", "OSError, 3 times"),
        ({"held_back": "outbox", "outbox_bytes": 2**26}, "outbox", "64.0 MiB"),
        ({"held_back": "ledger-lost"}, "ledger-lost", "ledger is lost"),
        ({"held_back": "of-a-later-version"}, "held-back", "of-a-later-version"),
        ({"binding": "communication", "gamma_up": 0.003, "network_mbps": 0.04}, "thin-link", "0.04 Mbit/s"),
    ],
)  # fmt: skip
def test_what_a_device_says_of_itself(vitals: dict[str, object], code: str, word: str) -> None:
    fleet = Fleet()
    fleet.vitals("truck-2", **vitals)
    state, shown, words = told(fleet, "truck-2")
    assert (state, shown) == ("limited", code)
    assert word in words
    fleet.vitals("truck-2")
    assert fleet.device("truck-2").state == "waiting"


def test_paused_by_an_operator_and_by_whom() -> None:
    fleet = Fleet()
    fleet.vitals("truck-2", held_back="paused", paused_by="operator-2a")
    assert told(fleet, "truck-2") == ("paused", "paused", "It is paused by operator-2a: it serves and does not train.")
    assert fleet.device("truck-2").paused_by == "operator-2a"


def test_every_template_belongs_to_a_state_and_names_only_values_that_are_filled_in() -> None:
    assert {state for state, _ in TEMPLATES.values()} == set(STATES)
    for code, (_, text) in TEMPLATES.items():
        assert re.fullmatch(r"[a-z-]+", code)
        assert text.endswith(".")


def test_evidence_is_newest_first_and_never_before_the_observer_began() -> None:
    fleet = Fleet()
    fleet.end_round(7, CLOSED)
    fleet.later(20)
    fleet.vitals("truck-2")
    times = [each.at_s for each in fleet.device("truck-2").why.evidence]
    assert times == sorted(times, reverse=True)
    assert min(times) >= BEGAN_S
