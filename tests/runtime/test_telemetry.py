from __future__ import annotations

import datetime as dt
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.fleet.devices import DEVICE_TYPES
from ofl_iot.protocol.telemetry import check
from ofl_iot.runtime.telemetry import (
    JetsonSource,
    PsutilSource,
    SimulatedSource,
    TelemetrySource,
    best_source,
    parse_jtop,
)


def core(*, online: bool, idle: float = 80.0) -> dict[str, Any]:
    if not online:
        return {"online": False, "governor": "schedutil", "freq": {}, "info_freq": {}, "idle_state": {}, "model": ""}
    return {
        "online": True,
        "governor": "schedutil",
        "freq": {"min": 115200, "max": 1420800, "cur": 1190400},
        "info_freq": {"min": 115200, "max": 1907200, "cur": 1190400},
        "idle_state": {"C1": 0, "c6": 0},
        "user": 12.0,
        "nice": 0.0,
        "system": 100.0 - 12.0 - idle,
        "idle": idle,
        "model": "ARMv8 Processor rev 0 (v8l)",
    }


# A Jetson Xavier NX in a mode with four of six cores, in the structure jetson-stats 4.2 documents.
STATS: dict[str, Any] = {
    "time": dt.datetime(2024, 5, 3, 10, 28, 30, 3209, tzinfo=dt.timezone.utc),
    "uptime": dt.timedelta(hours=22, minutes=47, seconds=52),
    "CPU1": 20,
    "CPU2": 30,
    "CPU3": 10,
    "CPU4": 40,
    "CPU5": "OFF",
    "CPU6": "OFF",
    "RAM": 0.41,
    "SWAP": 0.0,
    "EMC": 7,
    "GPU": 63.0,
    "APE": 150000,
    "NVENC": "OFF",
    "NVDEC": "OFF",
    "NVJPG": "OFF",
    "SE": "OFF",
    "VIC": "OFF",
    "Fan pwmfan0": 33.3,
    "Temp AO": 44.5,
    "Temp AUX": 44.0,
    "Temp CPU": 46.5,
    "Temp GPU": 47.25,
    "Temp iwlwifi": -256.0,
    "Temp thermal": 45.4,
    "Power CPU GPU CV": 2890,
    "Power SOC": 1440,
    "Power TOT": 6113,
    "jetson_clocks": "OFF",
    "nvp model": "MODE_15W_4CORE",
}
CPU: dict[str, Any] = {
    "total": {"user": 9.0, "nice": 0.0, "system": 4.0, "idle": 87.0},
    "cpu": [core(online=i < 4) for i in range(6)],
}
MEMORY: dict[str, Any] = {
    "RAM": {
        "tot": 7958912,
        "used": 3263000,
        "free": 2548000,
        "buffers": 97912,
        "cached": 2050000,
        "shared": 611000,
        "lfb": 412,
    },
    "SWAP": {"tot": 3979448, "used": 0, "cached": 0, "table": {}},
    "EMC": {"online": True, "val": 7, "cur": 1600000, "max": 1866000, "min": 204000},
}


def test_a_recorded_jetson_is_read_in_our_units() -> None:
    report = check(parse_jtop(STATS, CPU, MEMORY, "C"))
    assert (report.device_type, report.power_mode, report.cpu_count) == ("C", "MODE_15W_4CORE", 4)
    assert report.cpu_ghz == pytest.approx(1.4208)
    assert report.cpu_load == pytest.approx(0.25)
    assert (report.memory_total_mib, report.memory_free_mib) == (7772, 4585)
    assert report.gpu_load == pytest.approx(0.63)
    assert report.power_w == pytest.approx(6.113)
    assert report.temperature_c == 47.25
    assert report.battery is None


def test_a_board_without_optional_sensors_still_reports() -> None:
    bare = {name: value for name, value in STATS.items() if name.startswith("CPU")}
    report = check(parse_jtop(bare, {"cpu": [core(online=False)]}, {"RAM": {"tot": 4096, "free": 1024}}))
    assert (report.gpu_load, report.power_w, report.temperature_c, report.power_mode) == (None, None, None, "")
    assert report.memory_free_mib == 1


class RecordedJtop:
    """A jtop object that plays back the recorded sample."""

    def __init__(self) -> None:
        self.stats, self.cpu, self.memory = STATS, CPU, MEMORY
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def close(self) -> None:
        self.calls.append("close")


class JtopError(Exception):
    """What jtop raises when its service does not answer."""


class SilentJtop(RecordedJtop):
    def start(self) -> None:
        raise JtopError("The jtop.service is not active")


def jetson_stats(jtop: Any) -> Any:
    return SimpleNamespace(jtop=jtop, JtopException=JtopError)


def test_the_jetson_source_opens_and_closes_its_service() -> None:
    jtop = RecordedJtop()
    source = JetsonSource("C", jetson_stats=jetson_stats(lambda: jtop))
    assert source.read() == parse_jtop(STATS, CPU, MEMORY, "C")
    source.close()
    assert jtop.calls == ["start", "close"]


def test_jetson_stats_is_used_only_where_it_is_installed_and_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jtop", None)
    with pytest.raises(ConfigError, match=r"\.\[jetson\]"):
        JetsonSource()
    assert isinstance(best_source(), PsutilSource)
    monkeypatch.setitem(sys.modules, "jtop", jetson_stats(SilentJtop))
    with pytest.raises(ConfigError, match="service"):
        JetsonSource()
    best_source().close()
    monkeypatch.setitem(sys.modules, "jtop", jetson_stats(RecordedJtop))
    assert isinstance(best_source(), JetsonSource)


def test_this_machine_can_be_read() -> None:
    source: TelemetrySource = PsutilSource("gateway")
    report = check(source.read())
    assert report.device_type == "gateway"
    assert report.cpu_count >= 1
    assert report.memory_total_mib > 0


def test_sensors_a_platform_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    def broken(*_: Any, **__: Any) -> Any:
        raise NotImplementedError

    for name in ("cpu_freq", "sensors_battery", "sensors_temperatures"):
        monkeypatch.setattr(psutil, name, broken, raising=False)
    report = check(PsutilSource().read())
    assert (report.battery, report.temperature_c, report.cpu_ghz) == (None, None, 1.0)


@pytest.mark.parametrize("name", "ABCD")
def test_a_simulated_device_looks_like_its_type(name: str) -> None:
    kind = DEVICE_TYPES[name]
    source = SimulatedSource(kind, np.random.default_rng(3), lambda: 0.0, step_s=0.1)
    reports = [check(source.read()) for _ in range(200)]
    assert {(r.device_type, r.cpu_count, r.cpu_ghz) for r in reports} == {(name, kind.cpu_cores, kind.cpu_ghz)}
    assert np.mean([r.step_s for r in reports]) == pytest.approx(0.1 / kind.relative_speed, rel=0.02)
    assert all(0 < (r.power_w or 0) <= kind.power_w for r in reports)


def test_the_same_seed_and_clock_give_the_same_readings() -> None:
    first, second = (SimulatedSource(DEVICE_TYPES["A"], np.random.default_rng(5), lambda: 0.0) for _ in range(2))
    assert [first.read() for _ in range(5)] == [second.read() for _ in range(5)]


def test_a_simulated_battery_drains_and_is_recharged() -> None:
    hours = [0.0]
    source = SimulatedSource(DEVICE_TYPES["D"], np.random.default_rng(1), lambda: 3600 * hours[0], battery_wh=60)
    charge = []
    for step in range(200):
        hours[0] = step / 4
        charge.append(source.read().battery or 0.0)
    slopes = np.sign(np.diff(charge))
    assert min(charge) < 0.12
    assert max(charge) == 1.0
    assert {-1.0, 1.0} <= set(slopes.tolist())
    source.close()


def test_importing_the_sources_loads_nothing_heavy() -> None:
    code = (
        "import sys, ofl_iot.runtime.telemetry, ofl_iot.fleet.assignment; "
        "print(sorted({'scipy', 'sklearn', 'numba', 'torch', 'jtop'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 our own code
    assert done.stdout.strip() == "[]"
