"""The device machine and its parts: training, release, outbox, plan, privacy guard."""
