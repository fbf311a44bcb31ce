"""A program that reads a sensor's MQTT topic, learns from it with others, and uses the model: an agent in a thread.

Readings are JSON on `sensors/NAME/reading`: {"inputs": [8 numbers], "target": number}.

    python mqtt_sensor.py truck-017 broker.example 1883
"""

from __future__ import annotations

import json
import sys

import numpy as np
import paho.mqtt.client as mqtt

import ofl_iot
from ofl_iot import NumpyApp, Readings, mae, newest, r2

INPUTS = 8

app = NumpyApp(
    name="mqtt-sensor",
    network="linear",
    inputs=INPUTS,
    outputs=1,
    samples=Readings(newest(10_000)),
    metrics={"r2": r2, "mae": mae},
)


class Sensor:
    """Feeds what arrives on one topic to an agent; what cannot be read is counted and passed over."""

    def __init__(self, agent: ofl_iot.Agent, name: str, host: str, port: int) -> None:
        self._agent = agent
        self.taken = self.refused = 0
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"{name}-sensor")
        self._client.on_connect = lambda client, *_: client.subscribe(f"sensors/{name}/reading", 1)
        self._client.on_message = lambda _client, _data, message: self.take(message.payload)
        self._client.connect(host, port)
        self._client.loop_start()

    def take(self, payload: bytes) -> None:
        try:
            reading = json.loads(payload)
            self.taken += self._agent.add(np.array([reading["inputs"]], np.float32), np.array([reading["target"]]))
        except (ValueError, KeyError, TypeError, ofl_iot.errors.OflError):
            self.refused += 1

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def predict(model: object, inputs: np.ndarray) -> np.ndarray:
    """Use the model: one linear layer, its last row is the bias."""
    layer = model.tensors["layer1"]
    return inputs @ layer[:-1] + layer[-1]


def main(name: str, host: str, port: int) -> None:
    settings = {"federation.id": "mqtt-sensor", "mqtt.hosts": json.dumps([host]), "mqtt.port": port}
    with ofl_iot.Agent(app, id=name, settings=settings, state=f"state-{name}") as agent:
        agent.on_model(lambda model: print("round", model.round_no, "forecast", predict(model, np.zeros((1, INPUTS)))))
        sensor = Sensor(agent, name, host, port)
        try:
            input("Enter ends the program.\n")
        finally:
            sensor.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
