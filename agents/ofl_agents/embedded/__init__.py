"""Federated learning inside a program of one's own: `ofl_iot.Agent`, `ofl_iot.simulate`."""
