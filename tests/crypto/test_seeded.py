"""Half-size uploads: converted ciphertexts behave as ordinary ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ofl_iot.crypto import noise
from ofl_iot.crypto.encryption import weighted_sum
from ofl_iot.crypto.params import SEEDED
from ofl_iot.crypto.scalars import partial_scalars
from ofl_iot.crypto.scores import ScorePlan, combine_scores, request_scores
from ofl_iot.crypto.seeded import SeededModel, SwitchingKey, convert, encrypt_seeded, expand_round
from ofl_iot.crypto.threshold import final_decrypt, partial_decrypt, server_decrypt
from ofl_iot.errors import ConfigError, CryptoError

VALUES = np.random.default_rng(3).normal(0, 0.1, (2, 10_000))


@pytest.fixture(scope="module")
def uploads(seeded_term):
    from ofl_iot.crypto.entropy import SeededEntropy

    entropy = SeededEntropy(8)
    return [
        encrypt_seeded(seeded_term.public, row, seeded_term.origin(name), entropy)
        for name, row in zip(seeded_term.leaders[:2], VALUES, strict=True)
    ]


def test_converted_uploads_are_summed_decrypted_and_scored(seeded_term, uploads, entropy) -> None:
    expansion = expand_round(seeded_term.context, 7, VALUES.shape[1])
    models = []
    for model, switching in uploads:
        arrived = SeededModel.from_parts(model.to_parts(), model.origin)
        key = SwitchingKey.from_parts(switching.to_parts(), switching.origin)
        models.append(convert(expansion, arrived, key))
    active = seeded_term.leaders[2:]
    held, request = server_decrypt(
        seeded_term.public, weighted_sum(models, [0.25, 0.75]), active, seeded_term.leaders, entropy
    )
    shares = [partial_decrypt(seeded_term.shares[name], request, entropy) for name in active]
    error = np.abs(final_decrypt(held, shares) - (0.25 * VALUES[0] + 0.75 * VALUES[1])).max()
    assert error < noise.error_bound(SEEDED, 5, 3)
    plan = ScorePlan(max_energy=200.0)
    by_name = {model.origin.sender: model for model in models}
    kept, asked = request_scores(
        seeded_term.public, seeded_term.relin, by_name, np.zeros(10_000), plan=plan, active=active, entropy=entropy
    )
    answers = [partial_scalars(seeded_term.shares[name], asked, entropy, plan.queries(2)) for name in active]
    scores = combine_scores(kept, answers, plan)
    assert scores.gram is not None
    assert np.abs(scores.gram - VALUES @ VALUES.T).max() < 6 * scores.precision


def test_a_large_upload_takes_half_the_bytes(uploads) -> None:
    model, switching = uploads[0]
    per_row = (len(model.to_bytes()) / SEEDED.rows(10_000)) / SEEDED.degree
    assert per_row < 13.3
    assert all(len(part) < 257 * 1024 for half in (model, switching) for part in half.to_parts())


def test_halves_that_do_not_belong_together_are_refused(seeded_term, uploads) -> None:
    expansion = expand_round(seeded_term.context, 7, VALUES.shape[1])
    (model, switching), (_, foreign) = uploads
    with pytest.raises(CryptoError, match="truck-0: its switching key comes from truck-1"):
        convert(expansion, model, foreign)
    with pytest.raises(CryptoError, match="of round 7, this is round 8"):
        convert(replace(expansion, round_no=8), model, switching)
    with pytest.raises(CryptoError, match="not what the round is about"):
        convert(expand_round(seeded_term.context, 7, 10), model, switching)


def test_the_main_set_has_no_keys_to_switch_with(term, entropy) -> None:
    with pytest.raises(ConfigError, match="use 'seeded'"):
        encrypt_seeded(term.public, VALUES[0], term.origin("truck-0"), entropy)
