"""OFL-IoT: opportunistic federated learning over MQTT."""

__version__ = "0.1.0.dev0"
