"""Every setting is described, and the page of all settings is what the code says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ofl_agents.cli import main
from ofl_agents.commands.config import HEADING
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import tomllib
from ofl_iot.runtime.settings_reference import markdown, settings_of

PAGE = Path(__file__).parent.parent.parent / "docs" / "settings.md"


def test_the_page_of_all_settings_is_what_the_code_says() -> None:
    assert PAGE.read_text() == markdown(Settings, HEADING), "run: ofl config reference > docs/settings.md"


def test_every_setting_says_what_it_means_in_a_sentence() -> None:
    settings = list(settings_of(Settings))
    assert len(settings) > 100
    for setting in settings:
        assert setting.description.endswith("."), setting.key
        assert setting.kind, setting.key


def test_the_types_are_in_plain_words() -> None:
    by_key = {setting.key: setting for setting in settings_of(Settings)}
    assert by_key["upload.gamma"].kind == "number, ≥ 0, ≤ 1"
    assert by_key["log.format"].kind == '`"json"`, `"text"`'
    assert by_key["mqtt.hosts"].default == '["127.0.0.1"]'
    assert by_key["mqtt.tls.ca"].default == ""
    assert by_key["round.deadline_s"].env == "OFL_ROUND__DEADLINE_S"
    assert not [each.key for each in by_key.values() if "Type" in each.kind]


def test_show_describes_and_is_still_toml(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--describe", "--set", "round.deadline_s=7"]) == 0
    out = capsys.readouterr().out
    assert "# Seconds that leaders have to contribute to an open round.\ndeadline_s = 7.0" in out
    assert tomllib.loads(out)["round"]["deadline_s"] == 7.0


def test_show_as_json_has_value_origin_and_meaning_but_no_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFL_MQTT__PASSWORD", "hunter2")
    assert main(["config", "show", "--json", "--set", "mqtt.username=me", "--set", "log.format=json"]) == 0
    out = capsys.readouterr().out
    entries = json.loads(out)
    assert entries["log.format"]["value"] == "json"
    assert "command line" in entries["log.format"]["origin"]
    assert entries["mqtt.password"]["origin"] == "environment OFL_MQTT__PASSWORD"
    assert "hunter2" not in out
    assert set(entries) == {setting.key for setting in settings_of(Settings)}


def test_a_wrong_choice_names_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--set", "log.format=xml"]) == 2
    assert 'wanted one of "json", "text"' in capsys.readouterr().err
