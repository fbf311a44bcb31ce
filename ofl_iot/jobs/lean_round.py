"""The coordinator's jobs in lean rounds; each is a function of its arguments.

Importing the kernels costs a second and tens of megabytes, so everything here loads them when a job needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ofl_iot.crypto.lean import header as headers
from ofl_iot.crypto.lean import quantiser, vouchers
from ofl_iot.crypto.lean.header import Header, decode_header
from ofl_iot.crypto.lean.params import DEFAULT_PRECISION, body_bytes
from ofl_iot.crypto.lean.weights import integer_weights
from ofl_iot.errors import CryptoError, ProtocolError, RoundError, WrongShareError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from ofl_iot.jobs.decrypt import decrypt_scores_of
from ofl_iot.jobs.joint_key import FEWEST_CONTRIBUTORS, CulpritError, context_of, each_of, public_of
from ofl_iot.jobs.weighing import judge
from ofl_iot.protocol.codec import decode_body, encode_body
from ofl_iot.protocol.key_messages import KeyMember
from ofl_iot.protocol.lean import (
    OPEN,
    SCORES,
    SKETCH,
    VOUCH,
    LeanUpload,
    OpenAsk,
    ScoresAsk,
    SketchAsk,
    VouchAsk,
)
from ofl_iot.roles.events import LeanAsked, LeanWeights, RoundAggregated, Vector
from ofl_iot.roles.job_kinds.lean import FinishLean, LeanRound, OpenLean, PrepareLean, ScoreLean, WeighLean
from ofl_iot.roles.settings import ProtectionRules

if TYPE_CHECKING:
    from ofl_iot.crypto.context import KeyContext
    from ofl_iot.crypto.entropy import Entropy
    from ofl_iot.crypto.lean.masks import MaskedSum, Whole


class LeanCoordinator:
    """Checks uploads, scores sketches, weighs, and opens the sum that all contributors signed for."""

    def __init__(self, federation: FederationId, rules: ProtectionRules, entropy: Entropy) -> None:
        self._federation = federation
        self._rules = rules
        self._entropy = entropy

    def prepare(self, job: PrepareLean) -> LeanAsked:
        """Take the uploads that are what they must be; ask their leaders for sketches."""
        lean = job.lean
        context = context_of(self._federation, lean.key.opened)
        uploads, refused = _usable(context, lean)
        if len(uploads) < max(FEWEST_CONTRIBUTORS, context.threshold):
            raise RoundError(
                f"{len(uploads)} usable contributions, at least {max(FEWEST_CONTRIBUTORS, context.threshold)} are "
                f"needed: {'; '.join(f'{leader}: {why}' for leader, why in refused.items())}"
            )
        _pinned(uploads)
        signed = tuple(upload.signed for upload in uploads.values())
        requests = {
            leader: encode_body(SketchAsk(signed, {sender: each.boxes[leader] for sender, each in uploads.items()}))
            for leader in uploads
        }
        return LeanAsked(lean.round_no, lean.attempt, SKETCH, requests, tuple(uploads), refused)

    def score(self, job: ScoreLean) -> LeanAsked:
        """Scores on the sketches' ciphertexts; leaders compute the same request from the same bytes."""
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.encryption import EncryptedModel
        from ofl_iot.crypto.keygen import KEY_ROUND
        from ofl_iot.crypto.lean.binding import sketches_digest
        from ofl_iot.crypto.lean.sketches import hold_scores
        from ofl_iot.crypto.relinearisation import RelinKey
        from ofl_iot.crypto.scores import ScorePlan

        lean = job.lean
        context = context_of(self._federation, lean.key.opened)
        uploads = _uploads(lean, job.accepted)
        found = [decode_header(upload.signed.header) for upload in uploads.values()]
        members = {member.leader: member for member in lean.key.opened.members}

        def read(leader: DeviceId, data: bytes) -> EncryptedModel:
            _check_signature(members[leader], vouchers.sketch_bytes(found, data), job.signatures.get(leader, b""))
            model = EncryptedModel.from_bytes(data, Origin(context, lean.round_no, leader))
            if model.n_params != context.params.degree or model.scale_bits != context.params.scale_bits:
                raise CryptoError(f"sketch of {leader}: not a fresh one of {context.params.degree} numbers")
            return model

        sketches = {DeviceId(leader): model for leader, model in each_of(job.sketches, read).items()}
        held = hold_scores(
            public_of(context, lean.key.public),
            RelinKey.from_bytes(lean.key.relin, Origin(context, KEY_ROUND, COORDINATOR)),
            sketches,
            found,
            active=tuple(DeviceId(name) for name in job.active),
            retry=job.retry,
            plan=ScorePlan(self._rules.max_energy),
            entropy=self._entropy,
        )
        signed = tuple(upload.signed for upload in uploads.values())
        requests = {
            leader: encode_body(
                ScoresAsk(
                    signed,
                    {other: data for other, data in job.sketches.items() if other != leader},
                    job.active,
                    job.retry,
                    {sender: uploads[sender].boxes[leader] for sender in job.sketches},
                    job.signatures,
                )
            )
            for leader in job.active
        }
        digest = sketches_digest(sketches)
        return LeanAsked(
            lean.round_no, lean.attempt, SCORES, requests, job.accepted, held=held.to_bytes(), digest=digest
        )

    def weigh(self, job: WeighLean) -> LeanAsked:
        """Judge the scores; the integer weights nearest to Eq. 6 go to the contributors to be signed."""
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.scalars import HeldScalars
        from ofl_iot.crypto.scores import ScorePlan, read_coefficients, read_scores
        from ofl_iot.jobs.lean_binding import unbound_sketches

        lean = job.lean
        context = context_of(self._federation, lean.key.opened)
        held = HeldScalars.from_bytes(job.held, Origin(context, lean.round_no, COORDINATOR))
        plan = ScorePlan(self._rules.max_energy)
        values = decrypt_scores_of(held, job.shares)
        scores = read_scores(held, values, len(held.active), plan)
        by_leader = {each.leader: each for each in lean.contributions}
        uploads = _uploads(lean, job.accepted)
        unbound = unbound_sketches(context, job, held, read_coefficients(held, values), uploads)
        weights, verdict, refused = judge(scores, by_leader, lean.evidence, self._rules.s_factor, unbound)
        whole = self.whole_weights(weights, _pinned(uploads))
        weighed = LeanWeights(
            whole=whole,
            factor=float(sum(weights.values())),
            scored=tuple(weights),
            refused=refused,
            evidence={str(leader): value for leader, value in verdict.evidence_after.items()},
            reasons={str(leader): reason for leader, reason in verdict.reasons.items()},
            excluded=tuple(sorted(verdict.excluded)),
        )
        signed = tuple(upload.signed for upload in uploads.values())
        request = encode_body(VouchAsk(signed, whole))
        return LeanAsked(
            lean.round_no, lean.attempt, VOUCH, dict.fromkeys(whole, request), job.accepted, unbound, weighed=weighed
        )

    def whole_weights(self, weights: Mapping[str, float], pinned: Mapping[str, int]) -> dict[str, int]:
        """Integer weights; the pinned ones where an update was signed for before, if the scores still allow them."""
        counting = {leader: weight for leader, weight in weights.items() if weight > 0}
        if not pinned:
            if len(counting) < FEWEST_CONTRIBUTORS:
                raise RoundError(f"{len(counting)} clusters count, at least {FEWEST_CONTRIBUTORS} must")
            chosen = integer_weights({DeviceId(leader): weight for leader, weight in counting.items()})
            return {str(leader): weight for leader, weight in chosen.items()}
        gone = sorted(pinned.keys() - counting.keys())
        if gone:
            raise CulpritError({name: f"{name}: part of a vector that was signed before, and not now" for name in gone})
        return dict(pinned)

    def open(self, job: OpenLean) -> LeanAsked:
        """Check that every contributor signed; ask the leaders for their shares of the sum's key."""
        lean = job.lean
        uploads = _uploads(lean, job.accepted)
        found = [decode_header(upload.signed.header) for upload in uploads.values()]
        statement = vouchers.Statement.over(found, job.weighed.whole)
        members = {member.leader: member for member in lean.key.opened.members}

        def check(leader: DeviceId, signature: bytes) -> bytes:
            _check_signature(members[leader], statement.signed_bytes, signature)
            return signature

        signatures = each_of(job.signatures, check)
        signed = tuple(upload.signed for upload in uploads.values())
        requests = {
            leader: encode_body(
                OpenAsk(
                    signed,
                    job.weighed.whole,
                    signatures,
                    {sender: uploads[sender].boxes[leader] for sender in job.weighed.whole},
                )
            )
            for leader in job.accepted
        }
        return LeanAsked(lean.round_no, lean.attempt, OPEN, requests, job.accepted, weighed=job.weighed)

    def finish(self, job: FinishLean) -> RoundAggregated:
        """Open the sum; what the answers say about their senders goes with it."""
        from ofl_iot.crypto.lean.masks import MaskDomain, sum_bodies

        lean, weighed = job.lean, job.weighed
        context = context_of(self._federation, lean.key.opened)
        uploads = _uploads(lean, tuple(weighed.whole))
        masked = sum_bodies(
            MaskDomain(context.key_id, lean.round_no),
            [upload.body for upload in uploads.values()],
            [weighed.whole[leader] for leader in uploads],
            lean.base.size,
            DEFAULT_PRECISION,
        )
        answers = {DeviceId(leader): data for leader, data in job.answers.items()}
        opened, wrong = _opened(context, masked, answers)
        total = masked.total_weight
        average = quantiser.dequantise(opened, lean.bounds, DEFAULT_PRECISION, total)
        update: Vector = (np.float32(weighed.factor) * average).astype(np.float32)
        shares = {leader: weighed.factor * weight / total for leader, weight in weighed.whole.items()}
        return RoundAggregated(
            lean.round_no,
            update,
            dict.fromkeys(weighed.scored, 0.0) | shares,
            weighed.refused,
            weighed.evidence,
            weighed.reasons,
            weighed.excluded,
            failing=tuple(sorted(wrong)),
            bounds=quantiser.next_bounds(lean.bounds, update),
        )


def _opened(
    context: KeyContext, masked: MaskedSum, answers: Mapping[DeviceId, bytes]
) -> tuple[Whole, tuple[DeviceId, ...]]:
    """The sum and who answered wrongly: named by decoding, or else the one without whom the controls open."""
    from ofl_iot.crypto.lean.masks import open_sum
    from ofl_iot.crypto.lean.sharing import recover

    try:
        return open_sum(masked, recover(context, answers)), ()
    except WrongShareError as error:
        named = [name for name in answers if name in error.leaders]
    groups = [named] if len(answers) - len(named) >= context.threshold else [[name] for name in sorted(answers)]
    for group in groups:
        rest = {name: answer for name, answer in answers.items() if name not in group}
        if len(rest) < context.threshold:
            continue
        try:
            return open_sum(masked, recover(context, rest)), tuple(group)
        except WrongShareError:
            continue
    raise WrongShareError(
        f"round {masked.domain.round_no}: the answers do not open the sum, whoever is left out", tuple(answers)
    )


def _pinned(uploads: Mapping[str, LeanUpload]) -> dict[str, int]:
    """The one vector that contributors are pinned to; empty if none is.

    CulpritError names who stands in its way: who did not contribute as it must, or signed for another one. They are
    replaced if they go on like this, and a new key then frees the others.
    """
    pins = {leader: _header(upload).pinned for leader, upload in uploads.items()}
    signed = list(pins.values())
    found = sorted(set(signed) - {()}, key=lambda pin: (signed.count(pin), [(e.leader, e.weight) for e in pin]))
    if not found:
        return {}
    others = sorted(leader for leader, pin in pins.items() if pin and pin != found[-1])
    pinned = {each.leader: each.weight for each in found[-1]}
    missing = sorted(pinned.keys() - uploads.keys())
    if others or missing:
        why = "part of a vector that was signed before, and did not contribute to it"
        raise CulpritError({name: f"{name}: {why}" for name in (*missing, *others)})
    return pinned


def _header(upload: LeanUpload) -> Header:
    return decode_header(upload.signed.header)


def _uploads(lean: LeanRound, accepted: Iterable[str]) -> dict[str, LeanUpload]:
    """Uploads that were checked before."""
    wanted = set(accepted)
    return {each.leader: decode_body(LeanUpload, each.payload) for each in lean.contributions if each.leader in wanted}


def _usable(context: KeyContext, lean: LeanRound) -> tuple[dict[str, LeanUpload], dict[str, str]]:
    """The uploads that are lean bodies on this round's ground, and why the others are not."""
    members = {member.leader: member for member in lean.key.opened.members}
    base = headers.base_digest(lean.base.astype("<f4").tobytes())
    uploads: dict[str, LeanUpload] = {}
    refused: dict[str, str] = {}
    for each in lean.contributions:
        try:
            upload = decode_body(LeanUpload, each.payload)
            _check_upload(context, lean, members[each.leader], upload, base)
        except (CryptoError, ProtocolError, KeyError) as error:  # noqa: PERF203  # each leader is judged apart
            refused[each.leader] = str(error)
        else:
            uploads[each.leader] = upload
    return uploads, refused


def _check_upload(context: KeyContext, lean: LeanRound, member: KeyMember, upload: LeanUpload, base: bytes) -> None:
    header = decode_header(upload.signed.header)
    headers.check_agreement(context, lean.round_no, [header])
    expected = (member.leader, lean.base.size, DEFAULT_PRECISION, base, quantiser.bounds_digest(lean.bounds))
    if (header.sender, header.n_params, header.precision, header.base, header.bounds) != expected:
        raise CryptoError(f"header of {member.leader}: of another sender, model, base or bounds than the round's")
    if len(upload.body) != body_bytes(lean.base.size, DEFAULT_PRECISION):
        raise CryptoError(f"body of {member.leader}: {len(upload.body)} bytes")
    if headers.body_digest(upload.body) != header.body:
        raise CryptoError(f"body of {member.leader}: not the one that its header names")
    if upload.boxes.keys() != set(context.members):
        raise CryptoError(f"boxes of {member.leader}: not one for each leader")
    _check_signature(member, header.signed_bytes, upload.signed.signature)


def _check_signature(member: KeyMember, data: bytes, signature: bytes) -> None:
    """Leaders check the certificates; the coordinator sees to it that their check will find a signature."""
    if not member.certificate:
        return
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from cryptography.x509 import load_der_x509_certificate

    public = load_der_x509_certificate(member.certificate).public_key()
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    vouchers.verify_signature(der, data, signature, member.leader)
