"""Status, why, top and metrics tell the same numbers for one recorded view."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from ofl_agents.cli import main
from ofl_iot.fleet_view.metrics import exposition
from ofl_iot.fleet_view.reasons import _PUBLIC, TEMPLATES
from ofl_iot.fleet_view.terminal import round_sentence, status_lines, top_rows, why_lines
from ofl_iot.fleet_view.view import FleetView, decode_view, encode_view
from tests.fleet_view.fleet import Fleet

RECORDED = Path(__file__).parent / "recorded" / "north-depot.json"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LINE = re.compile(rf'^(?P<name>[a-z_:]+)\{{(?P<labels>(?:[^"}}]|{_QUOTED})*)\}} (?P<value>[-+0-9.e]+|NaN)$')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


@pytest.fixture
def view() -> FleetView:
    return decode_view(RECORDED.read_bytes())


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read the text format strictly; a figure that is told twice is an error."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    typed: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            assert line.split()[2] not in typed
            typed.add(line.split()[2])
        elif not line.startswith("#"):
            match = _LINE.match(line)
            assert match, line
            key = (match["name"], frozenset(_LABEL.findall(match["labels"])))
            assert key not in found, line
            found[key] = float(match["value"])
    return found


def test_status_top_and_metrics_tell_the_same_numbers(view: FleetView) -> None:
    told = samples(exposition(view))
    states = Counter(each.state for each in view.devices)
    text = "\n".join(status_lines(view))
    for state, count in states.items():
        of_metrics = sum(
            value for (name, labels), value in told.items() if name == "ofl_devices" and ("state", state) in labels
        )
        assert of_metrics == count
        assert f"{count} {state}" in text
        assert len(top_rows(view, 100, state)) == count
    up = [value for (name, _), value in told.items() if name == "ofl_device_up"]
    assert sum(up) == sum(each.online for each in view.devices)
    assert f"online       {int(sum(up))} of {len(up)}" in text
    assert told["ofl_accuracy_ratio", frozenset({("federation", "north-depot")})] == view.rounds[-2].accuracy


def test_status_and_why_keep_to_eighty_columns(view: FleetView) -> None:
    assert max(len(line) for line in status_lines(view)) <= 80
    for device in view.devices:
        assert max(len(line) for line in why_lines(view, device)) <= 100


def test_every_device_has_figures_up_to_the_stated_size_and_none_above(view: FleetView) -> None:
    assert 'device="truck-03"' in exposition(view)
    assert "device=" not in exposition(view, devices_max=len(view.devices) - 1)
    assert "ofl_privacy_budget_left_ratio_bucket" in exposition(view, devices_max=0)


def test_a_hostile_name_stays_inside_its_label(view: FleetView) -> None:
    evil = msgspec.structs.replace(view.devices[0], type='a"} 1\nofl_up{x="')
    told = samples(exposition(msgspec.structs.replace(view, devices=(evil,))))
    assert ("ofl_up", frozenset({("x", "")})) not in told


def test_an_empty_fleet_renders(view: FleetView) -> None:
    empty = Fleet(settle=False).view()
    assert samples(exposition(empty))["ofl_observer_up", frozenset({("federation", "depot")})] == 1
    assert "0 of 0" in "\n".join(status_lines(empty))


def test_histograms_add_up(view: FleetView) -> None:
    told = samples(exposition(view))
    counts = {labels: value for (name, labels), value in told.items() if name == "ofl_round_duration_seconds_count"}
    assert counts
    for labels, value in counts.items():
        assert told["ofl_round_duration_seconds_bucket", labels | {("le", "+Inf")}] == value


def test_why_of_a_round() -> None:
    fleet = Fleet()
    fleet.end_round(7, {"truck-1": ("truck-2",), "truck-3": ("truck-3",)})
    fleet.end_round(8, {}, closed=False, reason="one leader of two contributed")
    fleet.open_round(9, "truck-1")
    view = fleet.view()
    said = [round_sentence(view, fleet.device(name), number) for name, number in (
        ("truck-2", 7), ("truck-4", 7), ("truck-2", 8), ("truck-2", 9), ("truck-2", 3))]  # fmt: skip
    assert said == [
        "It was in round 7: cluster A had 50 % of the weight.",
        "It was not in round 7: its leader truck-3 held no chunk of it when it contributed.",
        "Round 8 was abandoned: one leader of two contributed.",
        "Round 9 is open; who is in it shows when it closes.",
        "Nothing is known of round 3; the observer knows rounds 7 to 9.",
    ]


def test_status_ends_with_a_code_that_says_how_urgent_it_is(
    view: FleetView, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {"critical": 2, "warning": 1, "info": 0}
    for severity, code in kinds.items():
        alerts = tuple(each for each in view.alerts if each.severity == severity)[:1]
        file = tmp_path / f"{severity}.json"
        file.write_bytes(encode_view(msgspec.structs.replace(view, alerts=alerts)))
        assert main(["status", "--view", str(file)]) == code
    empty = tmp_path / "empty.json"
    empty.write_bytes(encode_view(Fleet(settle=False).view()))
    assert main(["status", "--view", str(empty)]) == 3
    capsys.readouterr()
    assert main(["status", "--json", "--view", str(RECORDED)]) == 2
    assert decode_view(capsys.readouterr().out.encode()) == view


def test_why_as_json_has_the_code_the_sentence_and_the_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "truck-03", "--view", str(RECORDED), "--json", "--round", "147"]) == 0
    told = msgspec.json.decode(capsys.readouterr().out)
    assert (told["code"], told["state"]) == ("wrong-model", "refused")
    assert told["sentence"].startswith("It is refused")
    assert told["evidence"][0][2] == "device"
    assert told["round"]["round_no"] == 147


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["why", "truck-3", "--view", str(RECORDED)], "did you mean truck-33"),
        (["why", "x", "--view", "/nowhere.json"], "cannot be read"),
        (["status", "--state", "x"], "add --local"),
        (["metrics", "--listen", "here"], "HOST:PORT"),
        (["metrics", "--listen", "127.0.0.1:99999"], "HOST:PORT"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_fleet_without_a_broker_gives_no_word(free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--timeout", "0.2", "--set", f"mqtt.port={free_port}"]) == 3
    assert "no session at the broker" in capsys.readouterr().err


def test_the_operating_page_lists_every_code_and_every_figure(view: FleetView) -> None:
    page = (RECORDED.parents[3] / "docs" / "operating.md").read_text()
    codes = {_PUBLIC.get(code, code) for code in TEMPLATES}
    assert codes == set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE))
    figures = set(re.findall(r"^# TYPE (\S+)", exposition(view), re.MULTILINE))
    extra = {"ofl_observer_last_message_timestamp_seconds"}
    assert figures | extra == set(re.findall(r"^\| `(ofl_\w+)` \|", page, re.MULTILINE)) | extra


def test_the_grafana_dashboard_asks_for_figures_that_exist(view: FleetView) -> None:
    board = msgspec.json.decode((RECORDED.parents[3] / "docs" / "grafana.json").read_bytes())
    known = {name for name, _ in samples(exposition(view))}
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"ofl_\w+", target["expr"])
    }
    assert asked <= known
    assert len(board["panels"]) == len({panel["id"] for panel in board["panels"]})
