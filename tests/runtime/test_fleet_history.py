"""The history keeps what an observer shows, bounded, and hands it to the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.fleet_view.observer import Observer
from ofl_iot.fleet_view.records import Bin, Changes, Memory
from ofl_iot.fleet_view.view import EventView, RoundView
from ofl_iot.runtime import fleet_history
from ofl_iot.runtime.fleet_history import Batch, FleetHistory
from tests.fleet_view.fleet import MEMBERS, Fleet

CLOSED = {"truck-1": ("truck-1", "truck-2"), "truck-3": ("truck-3", "truck-4")}


def keep(history: FleetHistory, observer: Observer, now: float) -> None:
    history.write(Batch.of(observer.take_changes(), observer.memory, observer.open_alerts, now))


def test_an_observer_that_is_restarted_shows_the_same_history(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    history, fleet = FleetHistory(file, "depot"), Fleet()
    keep(history, fleet.observer, fleet.now)
    fleet.end_round(7, CLOSED)
    fleet.later(1000)
    fleet.vitals("truck-4", held_back="heat")
    fleet.status("truck-2", online=False)
    fleet.refuse("truck-3", "truck-4", "flood")
    fleet.later(30)
    before, page = fleet.view(), fleet.observer.details("truck-2", fleet.now)
    keep(history, fleet.observer, fleet.now)
    history.close()

    again = Fleet(FleetHistory(file, "depot").load(fleet.now), settle=False)
    again.now = fleet.now
    for name in MEMBERS:
        again.status(name, online=name != "truck-2", retained=True)
    after = again.view()
    assert after.devices == before.devices
    assert after.rounds == before.rounds
    assert after.clusters == before.clusters
    assert after.events == before.events
    assert after.alerts == before.alerts
    assert again.observer.details("truck-2", again.now) == page


def test_a_history_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("KEPT_EVENTS", 5), ("KEPT_ROUNDS", 3), ("_SWEEP_EVERY", 1)):
        monkeypatch.setattr(fleet_history, name, value)
    history = FleetHistory(tmp_path / "history.sqlite", "depot")
    for number in range(20):
        changes = Changes(
            rounds=[RoundView(round_no=number, attempt=0, state="closed")],
            events=[EventView(at_s=number, kind="x", subject="y", text=str(number))],
            bins={("truck-1", number * 900): Bin(start_s=number * 900)},
        )
        history.write(Batch.of(changes, Memory(), (), number * 900 + 30 * 86_400.0 - 3600))
    past = history.load(0.0)
    assert [each.round_no for each in past.rounds] == [17, 18, 19]
    assert [each.text for each in past.events] == ["19", "18", "17", "16", "15"]
    assert [each.start_s // 900 for each in past.bins["truck-1"]] == [15, 16, 17, 18, 19]
    history.close()


def test_another_federations_history_other_files_and_a_second_observer_are_refused_in_words(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    history = FleetHistory(file, "depot")
    with pytest.raises(ConfigError, match="is another observer using it"):
        FleetHistory(file, "depot")
    history.close()
    with pytest.raises(ConfigError, match="is the history of federation depot, not of harbour"):
        FleetHistory(file, "harbour")
    text = tmp_path / "notes.txt"
    text.write_text("hello" * 100)
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        FleetHistory(text, "depot")
    assert text.read_text() == "hello" * 100
    assert file.stat().st_mode & 0o077 == 0
