"""The tables and the chart of a run's fleet, and the settings with which a private simulation lasts."""

from __future__ import annotations

import argparse
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ofl_agents.commands.sim import add_options, paced, settings_for
from ofl_agents.sim.fleet_report import Reclustering, count_service, draw_fleet, service_by_type, write_fleet
from ofl_agents.sim.summary import Progress
from ofl_iot.ids import COORDINATOR
from ofl_iot.roles.reports.coordinator import Clustered, LeaderReplaced
from ofl_iot.runtime.settings import Settings

KINDS = {"a": "A", "b": "B", "c": "A"}


def test_service_is_summed_up_by_type_and_a_type_that_never_served_is_named(tmp_path: Path) -> None:
    services = count_service(KINDS, {"a": 2, "c": 1})
    assert service_by_type(services) == {"A": 3, "B": 0}
    write_fleet(services, [Reclustering(term=4, clusters=2, churn=0.25, new_leaders=1)], tmp_path)
    assert (tmp_path / "service.csv").read_text().splitlines()[1:] == ["A,2,3,1.0000,1.5000", "B,1,0,0.0000,0.0000"]
    assert (tmp_path / "reclusterings.csv").read_text().splitlines()[1:] == ["4,2,0.2500,1"]


def test_the_chart_is_an_image_even_of_a_run_without_reclustering() -> None:
    chart = ET.fromstring(draw_fleet(count_service(KINDS, {"a": 2}), []))  # noqa: S314  # our own text
    assert chart.tag.endswith("svg")
    assert "none in this run" in "".join(chart.itertext())


def test_progress_counts_leaders_that_are_new_whether_elected_or_deputies() -> None:
    progress = Progress(rounds=1)
    first = Clustered(term=1, clusters=2, leaders=("a", "b"), churn=0.0)
    replaced = LeaderReplaced(lost="a", leader="c", term=2)
    second = Clustered(term=3, clusters=2, leaders=("c", "d"), churn=0.5)
    for told in (first, replaced, second):
        progress.listen(COORDINATOR, told, 0.0)
    assert progress.leader_changes == 2, "c as a deputy, d by election"
    assert progress.reclusterings == [Reclustering(term=3, clusters=2, churn=0.5, new_leaders=1)]


def settings(*arguments: str, records: float = 500) -> Settings:
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args(["--runtime", "virtual", *arguments])
    return paced(settings_for(options), records, churn=options.churn)


def test_few_records_bear_few_private_steps_and_the_budget_lasts_for_the_run() -> None:
    few = settings("--devices", "200", "--rounds", "20", records=7)
    assert (few.training.steps, few.privacy.lifetime, few.privacy.planned_steps) == (round(7 * 25 / 20), "20 rounds", 0)
    many = settings("--rounds", "12", records=1000)
    assert (many.training.steps, many.privacy.lifetime) == (25, "12 rounds")
    assert settings("--set", "training.steps=7").training.steps == 7
    assert settings("--set", "privacy.lifetime=40 rounds").privacy.lifetime == "40 rounds"


def test_steps_that_are_planned_by_hand_are_spread_over_the_run() -> None:
    planned = settings("--devices", "200", "--set", "privacy.planned_steps=700")
    assert planned.privacy.planned_steps == 700
    trainings = planned.privacy.planned_steps / planned.training.steps
    assert trainings * (planned.training.pause_s + planned.training.steps * planned.simulation.step_s) >= 12 * 2.5 - 0.1
    assert settings("--set", "privacy.mode=off").training.pause_s == 0.0


@pytest.mark.parametrize(("churn", "present"), [((), 10), (("--churn",), 7)])
def test_a_churning_fleet_does_not_wait_for_everyone(churn: tuple[str, ...], present: int) -> None:
    assert settings("--devices", "10", *churn).fleet.min_devices == present


def test_an_app_suggests_settings_that_nobody_set() -> None:
    images = settings("--app", "mnist")
    assert (images.training.learning_rate, images.training.momentum) == (0.03, 0.9)
    assert settings("--app", "mnist", "--set", "training.learning_rate=0.2").training.learning_rate == 0.2
    assert settings("--app", "digits").training.learning_rate == 0.3
    assert (settings().training.learning_rate, settings().upload.gamma) == (0.5, 0.3)


def test_a_simulation_may_be_paced_by_the_lifetime_alone() -> None:
    asked = settings("--set", "privacy.planned_steps=0", "--set", "privacy.lifetime=30 rounds")
    assert (asked.privacy.planned_steps, asked.training.pause_s) == (0, 0.0)
