"""Every example in small: its data, a few devices, a few rounds, and the model comes out."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import ofl_iot

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = {"privacy.mode": "off", "protection.mode": "clear", "training.pause_s": 0.1}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def learn(module: ModuleType, data: Path, devices: int, rounds: int = 4) -> object:
    return ofl_iot.simulate(module.app, devices=devices, rounds=rounds, data=str(data), settings=QUICK)


def test_buildings(tmp_path: Path) -> None:
    """On three generated buildings in the form of CityLearn's; the wheel itself is fetched by hand."""
    module = example("buildings")
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        for number in range(1, 4):
            archive.writestr(f"citylearn/data/citylearn_challenge_2022_phase_all/Building_{number}.csv", hours(number))
        archive.writestr("citylearn/data/citylearn_challenge_2022_phase_all/weather.csv", "not a building")
    assert module.extract(wheel.getvalue(), tmp_path) == 3
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "building-01.csv"
    run = learn(module, tmp_path, devices=3)
    assert run.metrics["r2"] > 0.2


def hours(seed: int) -> str:
    """A year's quarter of use by the hour, with a daily pattern."""
    rng = np.random.default_rng(seed)
    lines = ["Month,Hour,Day Type,Equipment Electric Power [kWh]"]
    for hour in range(24 * 90):
        use = 2 + 1.5 * np.sin(2 * np.pi * hour / 24) + 0.2 * rng.normal()
        lines.append(f"1,{hour % 24 + 1},{hour // 24 % 7 + 1},{max(0.0, use):.4f}")
    return "\n".join(lines)


@pytest.mark.skipif(importlib.util.find_spec("seglearn") is None, reason="seglearn ships the recordings")
def test_wrist_motion(tmp_path: Path) -> None:
    module = example("wrist_motion")
    module.make(tmp_path, people=3)
    with np.load(tmp_path / "person-01.npz") as held:
        assert held["x"].shape[1:] == (6, 100)
    run = learn(module, tmp_path, devices=3, rounds=10)
    assert run.metrics["accuracy"] > 0.4  # a guess is right one time in seven; it reaches some 0.75


def test_machine_vibration_on_files_that_grow(tmp_path: Path) -> None:
    module = example("machine_vibration")
    for seed in range(2):
        module.record(tmp_path, seed)
    assert len(list((tmp_path / "machine-1").iterdir())) == 2
    run = learn(module, tmp_path, devices=4)
    assert run.metrics["detection"] > 0.8


def test_private_head(tmp_path: Path) -> None:
    module = example("private_head")
    module.make(tmp_path, devices=3)
    run = learn(module, tmp_path, devices=3, rounds=2)
    assert set(run.model.tensors) == {"middle.weight", "middle.bias"}


def test_sensor_graphs(tmp_path: Path) -> None:
    module = example("sensor_graphs")
    module.make(tmp_path, devices=3)
    run = learn(module, tmp_path, devices=3, rounds=10)
    assert run.metrics["accuracy"] > 0.5  # a guess is right one time in three; it reaches some 0.7
    out = tmp_path / "out"
    out.mkdir()
    run.model.save(out / "net.onnx", example=module.read(tmp_path / "device-01.npz"))
    import onnxruntime

    (readings, links), _ = module.read(tmp_path / "device-02.npz")
    session = onnxruntime.InferenceSession(str(out / "net.onnx"), providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"input_1": readings[:7], "input_2": links[:7]})
    import torch

    with torch.no_grad():
        wanted = run.model.network()(torch.from_numpy(readings[:7]), torch.from_numpy(links[:7])).numpy()
    assert np.abs(scores - wanted).max() < 1e-4


def test_a_sensor_feeds_its_agent_from_a_topic(mosquitto_port: int, tmp_path: Path) -> None:
    import threading
    import time

    import paho.mqtt.client as mqtt

    module = example("mqtt_sensor")
    settings = {"mqtt.port": mosquitto_port, "federation.id": "mqtt-sensor"}
    with ofl_iot.Agent(module.app, id="truck-1", settings=settings, state=tmp_path) as agent:
        sensor = module.Sensor(agent, "truck-1", "127.0.0.1", mosquitto_port)
        try:
            publisher = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="publisher")
            publisher.connect("127.0.0.1", mosquitto_port)
            publisher.loop_start()
            until, pause = time.monotonic() + 60, threading.Event()
            good = json.dumps({"inputs": [0.5] * 8, "target": 1.0})
            while not (sensor.taken and sensor.refused):
                assert time.monotonic() < until, (sensor.taken, sensor.refused, agent.status())
                for payload in (good, "no json", json.dumps({"inputs": "x"})):
                    publisher.publish("sensors/truck-1/reading", payload, qos=1)
                pause.wait(0.1)
            publisher.disconnect()
            publisher.loop_stop()
        finally:
            sensor.close()
    model = SimpleNamespace(tensors={"layer1": np.ones((9, 1))})
    assert module.predict(model, np.zeros((1, 8))) == 1.0
