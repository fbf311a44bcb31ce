"""The paper's literal scores are correct where they are compared with, and the bench reports what it must."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tenseal")

from ofl_research.benches import crypto as bench_crypto
from ofl_research.benches import literal_dft
from ofl_research.benches import round as bench_round
from ofl_research.benches.literal_dft import LiteralCost, SealScheme

KEYS = {
    "enc_speedup_vs_tenseal",
    "bytes_per_param",
    "bytes_ratio_vs_tenseal",
    "partdec_over_enc",
    "partdec_bytes_per_param",
    "score_speedup_vs_literal_dft",
    "max_error_10_leaders",
    "lean_enc_s",
    "lean_bytes_per_param",
    "lean_bytes_per_param_down",
    "lean_rms_error",
}


def test_the_literal_encrypted_dft_is_a_dft() -> None:
    scheme = SealScheme(1024, levels=9, secure=False)
    values = np.random.default_rng(0).normal(0, 0.05, scheme.slots)
    spectrum = scheme.decrypt(literal_dft.encrypted_dft(scheme, scheme.encrypt(values.tolist())))
    assert np.abs(spectrum - np.fft.fft(values)[literal_dft.bit_reversed(scheme.slots)]).max() < 1e-4
    assert scheme.rotations == 2 * 9 - 1


def test_the_literal_manhattan_distance_holds_inside_its_interval_and_lies_outside() -> None:
    scheme = SealScheme(1024, levels=3, secure=False)
    rng = np.random.default_rng(1)
    one, two = rng.uniform(-0.2, 0.2, (2, scheme.slots))
    wild = two + 3.0 * np.sign(rng.normal(size=scheme.slots))

    def distance(x: np.ndarray, y: np.ndarray) -> float:
        summed = literal_dft.encrypted_manhattan(scheme, scheme.encrypt(x.tolist()), scheme.encrypt(y.tolist()), 0.4)
        return float(scheme.decrypt(summed)[0].real)

    assert distance(one, two) == pytest.approx(np.abs(one - two).sum(), rel=0.1)
    assert distance(wild, two) < 0 < np.abs(wild - two).sum()


def test_the_bench_writes_every_promised_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model, and a literal DFT that stands in for minutes of work."""
    monkeypatch.setattr(bench_crypto, "measure_dft", lambda _: LiteralCost(3.0, 16384, 27, 1e-6))
    figures = bench_crypto.run(20_000)
    assert set(figures) >= KEYS
    assert figures["max_error_10_leaders"] < 2e-4
    assert figures["literal_dft_s"] == 6.0
    assert figures["lean_bytes_per_param"] <= 3.0
    assert figures["lean_bytes_per_param_down"] <= 0.5
    assert figures["lean_rms_error"] <= 5e-5


def test_a_lean_round_of_a_small_model_costs_no_more_than_one_of_main_and_a_leaders_memory_is_told() -> None:
    figures = bench_round.run(quick=True)
    (small,) = figures["rounds"]
    assert small["params"] == 100
    assert small["lean_over_main"] <= 1.0
    assert small["lean"]["key_up_a_leader"] == small["main"]["key_up_a_leader"]
    assert 0 < figures["lean_peak_mib"] < 772 / 2
