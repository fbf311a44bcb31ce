from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import DecodeError
from ofl_iot.protocol.telemetry import BOUNDS, ReportGate, SentReport, Telemetry, check


def report(**changes: Any) -> Telemetry:
    base = Telemetry(
        device_type="C",
        power_mode="MODE_15W_4CORE",
        cpu_count=4,
        cpu_ghz=1.42,
        cpu_load=0.37,
        memory_total_mib=7772,
        memory_free_mib=5120,
        gpu_load=0.5,
        battery=0.83,
        power_w=9.7,
        temperature_c=51.5,
        network_mbps=17.3,
        round_trip_s=0.021,
        availability=0.93,
        samples=3750,
        budget_left=0.71,
        staleness=3,
        model_distance=0.034,
        step_s=0.0613,
    )
    return msgspec.structs.replace(base, **changes)


@given(
    st.builds(
        report,
        cpu_load=st.floats(0, 1),
        battery=st.none() | st.floats(0, 1),
        network_mbps=st.none() | st.floats(1e-6, 1e6),
        samples=st.integers(0, 10**12),
    )
)
def test_every_report_survives_the_wire_within_300_bytes(telemetry: Telemetry) -> None:
    payload = msgspec.msgpack.encode(check(telemetry))
    assert msgspec.msgpack.decode(payload, type=Telemetry) == telemetry
    assert len(payload) < 300


def test_a_full_report_without_sketch_takes_about_150_bytes() -> None:
    assert len(msgspec.msgpack.encode(report())) < 170


@pytest.mark.parametrize("name", sorted(BOUNDS))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e12, 1e15])
def test_non_finite_and_absurd_values_are_refused(name: str, value: float) -> None:
    with pytest.raises(DecodeError, match=name):
        check(report(**{name: value}))


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_free_mib": 8000},
        {"device_type": "x" * 33},
        {"power_mode": "line\nbreak"},
    ],
)
def test_contradictions_and_oversize_texts_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DecodeError, match="telemetry"):
        check(report(**changes))


class TestReportGate:
    gate = ReportGate(min_interval_s=10, heartbeat_s=900)

    def test_the_first_report_is_due(self) -> None:
        assert self.gate.is_due(None, report(), 0)

    @given(st.floats(0, 899))
    def test_an_unchanged_report_waits_for_the_heartbeat(self, age_s: float) -> None:
        sent = SentReport(report(), at_s=1000)
        assert not self.gate.is_due(sent, report(), 1000 + age_s)
        assert self.gate.is_due(sent, report(), 1900)

    def test_a_change_is_sent_but_not_before_the_minimal_interval(self) -> None:
        sent, hot = SentReport(report(), at_s=0), report(temperature_c=80.0)
        assert not self.gate.is_due(sent, hot, 9)
        assert self.gate.is_due(sent, hot, 10)

    @pytest.mark.parametrize(
        "changes",
        [
            {"cpu_load": 0.9},
            {"battery": None},
            {"power_mode": "MAXN"},
            {"step_s": 0.2},
            {"staleness": 9},
            {"model_distance": math.nan},
        ],
    )
    def test_what_counts_as_a_change(self, changes: dict[str, Any]) -> None:
        assert self.gate.changed(report(), report(**changes))

    @pytest.mark.parametrize(
        "changes", [{"cpu_load": 0.45}, {"memory_free_mib": 5000}, {"round_trip_s": 0.03}, {"samples": 3800}]
    )
    def test_what_is_mere_noise(self, changes: dict[str, Any]) -> None:
        assert not self.gate.changed(report(), report(**changes))

    def test_a_clock_set_back_does_not_silence_the_device(self) -> None:
        assert self.gate.is_due(SentReport(report(), at_s=5000), report(), 10)

    def test_a_day_of_wandering_load_costs_little(self) -> None:
        sent, count = None, 0
        for minute in range(24 * 60):
            current = report(cpu_load=0.4 + 0.15 * math.sin(minute / 50), temperature_c=50 + 2 * math.sin(minute / 7))
            if self.gate.is_due(sent, current, 60.0 * minute):
                sent, count = SentReport(current, 60.0 * minute), count + 1
        assert count * len(msgspec.msgpack.encode(report())) < 40_000
