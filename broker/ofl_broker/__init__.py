"""The embedded MQTT broker, the access policy, profiles of production brokers."""

DEFAULT_PORT = 1883
"""Port of MQTT without TLS."""
