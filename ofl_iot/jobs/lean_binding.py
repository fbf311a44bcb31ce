"""Compares each contributor's sketch with its body, once the leaders' numbers are in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ofl_iot.crypto.lean.header import decode_header
from ofl_iot.crypto.lean.params import DEFAULT_PRECISION, value_bits
from ofl_iot.errors import WrongShareError
from ofl_iot.ids import DeviceId
from ofl_iot.jobs.joint_key import CulpritError, each_of
from ofl_iot.protocol.lean import LeanUpload
from ofl_iot.roles.job_kinds.lean import WeighLean

if TYPE_CHECKING:
    from ofl_iot.crypto.context import KeyContext
    from ofl_iot.crypto.lean.binding import Numbers
    from ofl_iot.crypto.scalars import HeldScalars

UNBOUND = "its sketch is not one of its body"


def unbound_sketches(
    context: KeyContext,
    job: WeighLean,
    held: HeldScalars,
    coefficients: Mapping[DeviceId, Sequence[float]],
    uploads: Mapping[str, LeanUpload],
) -> dict[str, str]:
    """Contributors whose sketch and body differ; CulpritError names leaders whose numbers are wrong."""
    from ofl_iot.crypto.lean import binding
    from ofl_iot.crypto.lean.sketches import places_of, signs_of
    from ofl_iot.crypto.scores import coefficient_gain, coefficient_sigma

    lean, params = job.lean, context.params
    contributors = sorted(coefficients)
    found = [decode_header(upload.signed.header) for upload in uploads.values()]
    places = places_of(found, job.digest, job.retry, params.degree)
    answers = each_of(
        job.numbers, lambda leader, data: binding.decode_numbers(data, contributors, len(places), str(leader))
    )
    if len(answers) < context.threshold:
        return {}  # fewer could open all shares: whose do not open is settled where sums are
    signs = signs_of(found, lean.base.size, params.degree)
    step = binding.finest_step(lean.bounds, lean.base.size, value_bits(DEFAULT_PRECISION))
    norm = math.sqrt(2 * params.degree / 3) / step
    unit = coefficient_gain(params) * params.decryption_modulus / params.modulus * params.scale
    noise = coefficient_sigma(context) * math.sqrt(len(held.active) + 1) / unit * norm
    off: dict[str, str] = {}
    for number, place in enumerate(places):
        weights = binding.combination(signs, place, lean.bounds, lean.base.size)
        limit = binding.allowed(weights, noise, DEFAULT_PRECISION)
        if limit > (1 << DEFAULT_PRECISION) / 4:
            continue  # bounds that differ by so much leave nothing to compare
        for name in contributors:
            masked = _number(context, answers, name, number)
            body = uploads[name].body
            told = coefficients[name][number] * norm
            if abs(binding.difference(body, weights, masked, told, DEFAULT_PRECISION)) > limit:
                off[name] = UNBOUND
    return off


def _number(context: KeyContext, answers: Mapping[str, Numbers], name: DeviceId, place: int) -> int:
    from ofl_iot.crypto.lean.binding import recover_number

    given = {DeviceId(leader): numbers[name][place] for leader, numbers in answers.items()}
    try:
        return recover_number(context, given)
    except WrongShareError as error:
        if len(error.leaders) < len(given):
            raise CulpritError({leader: f"{leader}: a wrong number" for leader in error.leaders}) from error
        raise
