"""The fleet view reads the design's sample, keeps what it read, and says figures in words."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError
from ofl_iot.fleet_view import wording
from ofl_iot.fleet_view.view import STATES, Why, decode_details, decode_view, encode_view

RECORDED = Path(__file__).parent / "recorded"
NOW_S = 1_794_970_320.0


def test_a_recorded_view_is_read_with_its_states_reasons_rounds_and_alerts() -> None:
    view = decode_view((RECORDED / "north-depot.json").read_bytes())
    device = view.device("truck-03")
    assert device is not None
    assert (device.state, device.why.code, device.cluster) == ("refused", "wrong-model", "A")
    assert device.why.evidence[0].by == "device"
    assert device.why.todo is not None
    assert device.why.todo.command == "ofl config show"
    assert view.rounds[-1].state == "open"
    assert view.rounds[-1].seconds.decrypt is None
    assert view.alerts[0].kind == "leader-flapping"
    assert view.federation.protection.threshold == 4
    assert view.device("nobody") is None


def test_what_is_written_is_read_back_equal() -> None:
    view = decode_view((RECORDED / "north-depot.json").read_bytes())
    assert decode_view(encode_view(view)) == view
    details = decode_details((RECORDED / "truck-03.json").read_bytes())
    assert decode_details(encode_view(details)) == details
    assert len(details.contact) == len(details.upload_bytes) == len(details.budget) == 96
    assert b'"from":84' in encode_view(details)


def test_a_field_of_a_later_version_is_ignored_and_another_schema_refused() -> None:
    raw = msgspec.json.decode((RECORDED / "north-depot.json").read_bytes())
    raw["devices"][0]["mood"] = "fine"
    assert decode_view(msgspec.json.encode(raw)).devices[0].id == raw["devices"][0]["id"]
    raw["schema"] = "ofl.fleet-view/2"
    with pytest.raises(ConfigError, match=r"reads ofl\.fleet-view/1"):
        decode_view(msgspec.json.encode(raw))
    with pytest.raises(ConfigError, match="ofl status --json"):
        decode_view(b"[]")


def test_there_are_seven_states() -> None:
    assert len(set(STATES)) == 7


def test_a_reason_is_a_template_and_is_filled_when_it_is_shown() -> None:
    why = Why(
        code="no-leader",
        text="It waits for its leader: {leader} took over {since_s:ago}; {bytes:size} wait, {left:share} left.",
        values={"leader": "yard-02", "since_s": NOW_S - 40, "bytes": 5_872_026, "left": 0.004},
    )
    told = wording.sentence(why, NOW_S)
    assert told == "It waits for its leader: yard-02 took over 40 s ago; 5.6 MiB wait, 0.4 % left."
    assert "100 s" not in wording.sentence(why, NOW_S + 60)
    assert wording.fill("{x} and {y:count}", {"y": 1234567}, NOW_S) == "unknown and 1,234,567"


def test_a_value_that_looks_like_a_template_stays_a_text() -> None:
    assert wording.fill("{a}", {"a": "{b}", "b": "secret"}, NOW_S) == "{b}"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-3, "0 s"), (37, "37 s"), (99, "99 s"), (100, "2 min"), (5340, "89 min"), (15840, "4 h 24 min"), (86400, "24 h"),
     (172800, "2 days")],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert wording.span(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (1023, "1.0 KiB"), (467_000, "456 KiB"), (5_872_026, "5.6 MiB"), (2**40, "1024 GiB")],
)
def test_sizes(count: float, words: str) -> None:
    assert wording.size(count) == words


@given(st.text(max_size=300), st.integers(2, 80))
def test_a_foreign_text_is_one_printable_line_within_its_limit(text: str, limit: int) -> None:
    shown = wording.plain(text, limit)
    assert len(shown) <= limit
    assert all(letter.isprintable() for letter in shown)
