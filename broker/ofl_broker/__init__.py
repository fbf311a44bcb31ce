"""The embedded MQTT broker, the access policy, profiles of production brokers."""
