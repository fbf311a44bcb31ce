"""Speed, size and error of the threshold encryption, beside TenSEAL and the paper's literal FHE-DFT.

Processor seconds of one thread, the best of a few repetitions; ours and TenSEAL's alternate, so that a busy machine
slows both. The literal FHE-DFT is measured on one ciphertext and scaled to the model.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import numpy as np

from ofl_iot.crypto import keygen, relinearisation
from ofl_iot.crypto.context import KeyContext, Origin
from ofl_iot.crypto.encryption import PublicKey, encrypt, weighted_sum
from ofl_iot.crypto.entropy import Entropy, SystemEntropy
from ofl_iot.crypto.keygen import KeyShare
from ofl_iot.crypto.params import MAIN, ParameterSet
from ofl_iot.crypto.relinearisation import RelinKey
from ofl_iot.crypto.scalars import partial_scalars
from ofl_iot.crypto.scores import ScorePlan, combine_scores, request_scores
from ofl_iot.crypto.threshold import final_decrypt, partial_decrypt, server_decrypt
from ofl_iot.ids import DeviceId, FederationId, Term
from ofl_research.benches.lean import lean_figures
from ofl_research.benches.literal_dft import measure_dft
from ofl_research.benches.timing import best, timed

Result = TypeVar("Result")
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

TENSEAL_MODULI = [60, 40, 40]
"""NVIDIA FLARE's default: degree 8192, scale 2^40, slot packing."""


class Keys:
    """A term's keys, made by the leaders' own protocol."""

    def __init__(self, params: ParameterSet, leaders: int, threshold: int, entropy: Entropy) -> None:
        self.members = tuple(DeviceId(f"leader-{number}") for number in range(leaders))
        self.context = KeyContext(params, FederationId("bench"), Term(1), self.members, threshold)
        secrets = [keygen.generate_secret(self.context, member, entropy) for member in self.members]
        shares = [keygen.generate_share(secret, entropy) for secret in secrets]
        self.public: PublicKey = keygen.combine_shares(self.context, shares)
        deals = [keygen.generate_deals(secret, entropy) for secret in secrets]
        self.shares: dict[DeviceId, KeyShare] = {
            member: keygen.combine_deals(self.context, member, [dealt[member] for dealt in deals])
            for member in self.members
        }
        first = relinearisation.combine_shares(
            self.context, [relinearisation.generate_share(secret, entropy) for secret in secrets]
        )
        completions = [relinearisation.complete_share(secret, first, entropy) for secret in secrets]
        self.relin: RelinKey = relinearisation.combine_completions(first, completions)

    def origin(self, member: DeviceId) -> Origin:
        """Round 1 of that member."""
        return Origin(self.context, 1, member)


def _serialised(vectors: list[Any]) -> list[bytes]:
    return [vector.serialize() for vector in vectors]


class TenSeal:
    """Slot-packed encryption as NVIDIA FLARE does it, on one thread."""

    def __init__(self, values: Floats) -> None:
        import tenseal

        self.context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=TENSEAL_MODULI, n_threads=1)
        self.context.global_scale = 2.0**40
        slots = 4096
        self.pieces = [values[start : start + slots].tolist() for start in range(0, values.size, slots)]

    def encrypt(self) -> list[Any]:
        """One vector for each 4096 values."""
        import tenseal

        return [tenseal.ckks_vector(self.context, piece) for piece in self.pieces]


def run(
    params: int = 1_000_000, leaders: int = 10, repeats: int = 5, literal_degree: int | None = 32768
) -> dict[str, float]:
    """All figures for a model of `params` parameters; those of the literal FHE-DFT unless its degree is None."""
    entropy = SystemEntropy()
    rng = np.random.default_rng(0)
    keys = Keys(MAIN, leaders, leaders, entropy)
    models = [rng.normal(0, 0.05, params) for _ in range(leaders)]
    out: dict[str, float] = {"params": params, "leaders": leaders}
    out |= _upload_figures(keys, models[0], repeats, entropy)
    out |= _aggregation_figures(keys, models, repeats, entropy)
    out["partdec_over_enc"] = out["partdec_s"] / out["enc_s"]
    out |= _score_figures(keys, models[0], repeats, entropy)
    if literal_degree is not None:
        literal = measure_dft(literal_degree)
        out["literal_dft_s"] = literal.seconds_for(params)
        out["literal_dft_ciphertexts_measured"] = 1
        out["score_speedup_vs_literal_dft"] = out["literal_dft_s"] / out["score_s"]
    out |= lean_figures(entropy, repeats)
    out["lean_enc_over_main"] = out["lean_enc_s"] / _main_upload_s(keys, int(out["lean_params"]), repeats, entropy)
    return out


def _main_upload_s(keys: Keys, params: int, repeats: int, entropy: Entropy) -> float:
    """Seconds in which the set `main` encrypts and packs a model, which is what a lean upload takes the place of."""
    values = np.random.default_rng(1).normal(0, 0.05, params)
    origin = keys.origin(keys.members[0])
    return min(timed(lambda: encrypt(keys.public, values, origin, entropy).to_parts())[0] for _ in range(repeats))


def _upload_figures(keys: Keys, values: Floats, repeats: int, entropy: Entropy) -> dict[str, float]:
    """Encrypt and pack for the wire, ours and TenSEAL's by turns."""
    origin = keys.origin(keys.members[0])
    theirs = TenSeal(values)
    enc_s = upload_s = their_enc_s = their_upload_s = float("inf")
    our_bytes = their_bytes = 0
    for _ in range(repeats):
        seconds, model = timed(lambda: encrypt(keys.public, values, origin, entropy))
        packing_s, parts = timed(model.to_parts)
        enc_s, upload_s = min(enc_s, seconds), min(upload_s, seconds + packing_s)
        our_bytes = sum(map(len, parts))
        seconds, vectors = timed(theirs.encrypt)
        packing_s, parts = timed(partial(_serialised, vectors))
        their_enc_s, their_upload_s = min(their_enc_s, seconds), min(their_upload_s, seconds + packing_s)
        their_bytes = sum(map(len, parts))
    return {
        "enc_s": enc_s,
        "tenseal_enc_s": their_enc_s,
        "enc_speedup_vs_tenseal": their_enc_s / enc_s,
        "upload_speedup_vs_tenseal": their_upload_s / upload_s,
        "bytes_per_param": our_bytes / values.size,
        "tenseal_bytes_per_param": their_bytes / values.size,
        "bytes_ratio_vs_tenseal": their_bytes / our_bytes,
    }


def _aggregation_figures(keys: Keys, models: list[Floats], repeats: int, entropy: Entropy) -> dict[str, float]:
    """Weighted sum and threshold decryption by all leaders, and the largest error."""
    weights = np.random.default_rng(1).dirichlet(np.ones(len(models)))
    sealed = [
        encrypt(keys.public, values, keys.origin(member), entropy)
        for member, values in zip(keys.members, models, strict=True)
    ]
    sum_s, aggregate = best(lambda: weighted_sum(sealed, weights.tolist()), repeats)
    server_s, (held, request) = best(
        lambda: server_decrypt(keys.public, aggregate, keys.members, keys.members, entropy), repeats
    )
    first = keys.shares[keys.members[0]]
    part_s, share = best(lambda: partial_decrypt(first, request, entropy), repeats)
    shares = [share, *(partial_decrypt(keys.shares[member], request, entropy) for member in keys.members[1:])]
    final_s, result = best(lambda: final_decrypt(held, shares), repeats)
    expected = np.sum([w * values for w, values in zip(weights, models, strict=True)], axis=0)
    return {
        "weighted_sum_s_per_leader": sum_s / len(models),
        "serverdec_s": server_s,
        "partdec_s": part_s,
        "findec_s": final_s,
        "partdec_bytes_per_param": sum(map(len, share.to_parts())) / models[0].size,
        f"max_error_{len(models)}_leaders": float(np.abs(result - expected).max()),
    }


def _score_figures(keys: Keys, values: Floats, repeats: int, entropy: Entropy) -> dict[str, float]:
    """All of one leader's scores, from ciphertext to numbers: ServerDec, one PartDec, FinDec."""
    member = keys.members[0]
    reference = values + np.random.default_rng(2).normal(0, 0.003, values.size)
    models = {member: encrypt(keys.public, values, keys.origin(member), entropy)}
    plan = ScorePlan(gram=False)
    score_s, (held, request) = best(
        lambda: request_scores(
            keys.public, keys.relin, models, reference, plan=plan, active=keys.members, entropy=entropy
        ),
        repeats,
    )
    limit = plan.queries(1)
    answer_s, _ = best(lambda: partial_scalars(keys.shares[member], request, entropy, limit), repeats)
    shares = [partial_scalars(keys.shares[other], request, entropy, limit) for other in keys.members]
    scores = combine_scores(held, shares, plan)
    true = float(np.sum((values - reference) ** 2))
    return {"score_s": score_s, "score_partdec_s": answer_s, "score_error": abs(scores.distance[member] - true)}
