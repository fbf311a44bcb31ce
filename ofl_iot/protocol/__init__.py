"""The wire: topics, messages, their bytes. Pure: no socket, clock or randomness."""
