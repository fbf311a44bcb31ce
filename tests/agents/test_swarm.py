"""Which agents each process of a swarm runs, and where its broker is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_agents.cli import main
from ofl_agents.commands.swarm import broker_of, total
from ofl_agents.swarm import Slice
from ofl_iot.errors import ConfigError


@given(st.integers(1, 300), st.integers(1, 9))
def test_every_agent_is_in_one_process_under_a_name_of_its_own(agents: int, processes: int) -> None:
    parts = [Slice(agents, number, processes) for number in range(processes)]
    members = [member for part in parts for member in part.members]
    assert sorted(members) == list(range(agents))
    assert len({parts[0].name(member) for member in members}) == agents


def test_names_sort_as_numbers() -> None:
    assert [Slice(100, prefix="bus").name(at) for at in (0, 9, 99)] == ["bus-001", "bus-010", "bus-100"]


@pytest.mark.parametrize(
    ("url", "hosts", "port"),
    [
        ("mqtt://broker.example:1884", ["broker.example"], "1884"),
        ("broker.example", ["broker.example"], None),
        ("127.0.0.1:1999", ["127.0.0.1"], "1999"),
    ],
)
def test_a_brokers_address_becomes_settings(url: str, hosts: list[str], port: str | None) -> None:
    given_ = broker_of(url)
    assert json.loads(given_["mqtt.hosts"]) == hosts
    assert given_.get("mqtt.port") == port
    assert broker_of(None) == {}


@pytest.mark.parametrize(
    "url", ["mqtts://b", "http://b:1883", "mqtt://", "mqtt://b:x", "mqtt://b:99999", "mqtt://b/topic"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--broker"):
        broker_of(url)


def test_a_swarm_of_nobody_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swarm", "--agents", "0"]) == 2
    assert "--agents 0" in capsys.readouterr().err


def test_tallies_are_summed() -> None:
    assert total([{"agents": 2, "cpu_s": 0.25}, {"agents": 1, "cpu_s": 0.5}]) == {
        "agents": 3,
        "cpu_s": 0.75,
        "processes": 2,
    }
