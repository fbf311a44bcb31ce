"""OFL-IoT: opportunistic federated learning over MQTT."""

__version__ = "0.2.0.dev0"
