"""`ofl bench broker` measures what it says, with every message accounted for."""

from __future__ import annotations

import pytest

from ofl_research.benches import broker as bench_broker
from tests.conftest import MOSQUITTO
from tests.nats import NATS


@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
@pytest.mark.skipif(NATS is None, reason="nats-server is not installed")
def test_it_measures_a_broker_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_broker, "QUICK_SIZES", (3,))
    said: list[str] = []
    chosen = ["mosquitto", "mosquitto with TLS", "nats"]
    figures = bench_broker.run(quick=True, brokers=chosen, progress=said.append)
    assert list(figures) == chosen
    assert len(said) == len(chosen)
    for by_size in figures.values():
        measured = by_size["3"]
        assert measured["rss_mib"] > 1
        assert measured["chunk_per_s"] > 0
        assert measured["telemetry_per_s"] > 0
        assert measured["steady_p99_ms"] > 0
