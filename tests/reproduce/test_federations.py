"""Any system through one function: whole runs on the digits."""

from __future__ import annotations

import msgspec
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.workloads.tasks import Task, load_task
from ofl_research.reproduction.federations import SYSTEMS, ofl_settings, run_system
from ofl_research.reproduction.plan import Plan, Result

QUICK = Plan(rounds=2, steps=5, learning_rate=0.3, round_s=2.0, protection="clear", judge_devices=True)


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("digits", devices=4, seed=0)


def without_time(result: Result) -> Result:
    return msgspec.structs.replace(result, wall_s=0.0)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_repeats_by_its_seed_and_can_be_stored(task: Task, system: str) -> None:
    first, second = (run_system(system, task, QUICK) for _ in range(2))
    assert without_time(first) == without_time(second)
    assert msgspec.json.decode(msgspec.json.encode(first), type=Result) == first
    other = run_system(system, task, msgspec.structs.replace(QUICK, seed=1))
    assert other.accuracy != first.accuracy or other.curve != first.curve


def test_fedavg_learns_and_every_byte_is_counted(task: Task) -> None:
    seen: list[float] = []
    plan = Plan(rounds=30, steps=10, learning_rate=0.3, judge_devices=True)
    result = run_system("fedavg", task, plan, lambda done, _: seen.append(done))
    assert result.accuracy > 0.85
    model = 4 * result.parameters
    assert 30 * model <= result.bytes_up_per_device <= 30 * (model + 100)
    assert result.bytes_up_leader_role == 0
    assert result.operations.trained_steps == 4 * 30 * 10
    assert result.operations.server_multiply_adds == 4 * 30 * result.parameters
    assert len(result.device_accuracies) == 4
    assert seen[-1] == 1.0


def test_ofl_splits_what_devices_and_leaders_send(task: Task) -> None:
    result = run_system("ofl", task, QUICK)
    assert result.bytes_up_device_role > 0
    assert result.bytes_up_leader_role > 0
    assert result.bytes_up_per_device == pytest.approx(result.bytes_up_device_role + result.bytes_up_leader_role)
    models = 2 * 2 * 4 * result.parameters  # of two leaders in two rounds
    assert models < result.devices * result.bytes_up_in_rounds < 1.1 * models
    assert sum(result.leader_terms_by_type.values()) > 0
    assert result.operations.merged_parameters > 0
    assert result.rounds == 2


def test_links_with_a_rate_make_dense_uploads_slow(task: Task) -> None:
    fast, slow = (
        run_system("fedavg", task, Plan(rounds=2, steps=1, limited_links=limited)).virtual_s
        for limited in (False, True)
    )
    assert slow > fast + 2 * 2 * 4 * 2410 / (5e6 / 8)


def test_a_private_fedavg_trains_with_noise(task: Task) -> None:
    plan = Plan(rounds=2, steps=2, privacy="rigorous", planned_steps=4)
    assert run_system("fedavg", task, plan).curve != run_system("fedavg", task, Plan(rounds=2, steps=2)).curve
    with pytest.raises(ConfigError, match="paper"):
        run_system("fedavg", task, Plan(privacy="paper"))


def test_a_baseline_takes_its_options(task: Task) -> None:
    plan = Plan(rounds=4, steps=2, options={"first_split_round": 1, "small_mean": 9.0, "large_update": 0.0})
    whole, split = run_system("fedavg", task, Plan(rounds=4, steps=2)), run_system("cfl", task, plan)
    assert split.curve != whole.curve
    assert split.bytes_up_in_rounds == 0
    with pytest.raises(ConfigError, match="options"):
        run_system("cfl", task, Plan(rounds=1, options={"small_mean": "much"}))


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) - {"ofl", "ifca"}))
def test_every_baseline_learns_the_digits(task: Task, system: str) -> None:
    result = run_system(system, task, Plan(rounds=25, steps=10, learning_rate=0.3, eval_every=5))
    assert result.accuracy > 0.8
    assert result.failures == 0
    assert (result.bytes_up_leader_role > 0) == (system in {"rfl-ha", "ahfl"})


def test_options_that_a_system_does_not_have_are_refused(task: Task) -> None:
    with pytest.raises(ConfigError, match="options"):
        run_system("cfl", task, Plan(options={"small_mean": "much"}))


def test_an_unknown_system_is_named_with_those_that_exist(task: Task) -> None:
    with pytest.raises(ConfigError, match="fedavg"):
        run_system("magic", task, QUICK)


def test_a_plan_of_no_rounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="rounds"):
        Plan(rounds=0)


def test_options_change_sections_of_the_production_settings() -> None:
    assert ofl_settings(Plan(options={"fleet": {"clusters": 2}})).fleet.clusters == 2
