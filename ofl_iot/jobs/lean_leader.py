"""A leader's jobs in lean rounds: it masks its update, and answers only what it has checked.

Importing the kernels costs a second and tens of megabytes, so everything here loads them when a job needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ofl_iot.crypto.lean import header as headers
from ofl_iot.crypto.lean import quantiser, vouchers
from ofl_iot.crypto.lean.budget import BINDINGS, MOST_TRIES
from ofl_iot.crypto.lean.header import Header, Weighed, check_agreement, decode_header
from ofl_iot.crypto.lean.params import DEFAULT_PRECISION
from ofl_iot.errors import CryptoError
from ofl_iot.ids import DeviceId, FederationId
from ofl_iot.jobs.joint_key import context_of, each_of, public_of
from ofl_iot.protocol.codec import decode_body, encode_body
from ofl_iot.protocol.key_messages import KeyOpen
from ofl_iot.protocol.lean import (
    OPEN,
    SCORES,
    SKETCH,
    VOUCH,
    LeanAnswer,
    LeanUpload,
    OpenAsk,
    ScoresAsk,
    SignedHeader,
    SketchAsk,
    VouchAsk,
)
from ofl_iot.protocol.parts import digest_of
from ofl_iot.roles.events import ContributionProtected, LeanAnswered
from ofl_iot.roles.job_kinds.keys import AnswerLean
from ofl_iot.roles.job_kinds.rounds import ProtectContribution
from ofl_iot.roles.settings import ProtectionRules

if TYPE_CHECKING:
    from ofl_iot.crypto.context import KeyContext
    from ofl_iot.crypto.encryption import EncryptedModel
    from ofl_iot.crypto.entropy import Entropy
    from ofl_iot.crypto.sealing import Envelope
    from ofl_iot.identity.enrolment import SealingTrust


class LeanLeader:
    """Masks bodies, makes sketches, answers scores, signs vectors, opens sums."""

    def __init__(
        self, federation: FederationId, rules: ProtectionRules, entropy: Entropy, trust: SealingTrust | None
    ) -> None:
        """An enrolled leader has a `trust`: it signs, and takes nobody's word without a signature."""
        self._federation = federation
        self._rules = rules
        self._entropy = entropy
        self._trust = trust
        self._stages: dict[str, Callable[[AnswerLean], LeanAnswered]] = {
            SKETCH: self._sketch,
            SCORES: self._scores,
            VOUCH: self._vouch,
            OPEN: self._open,
        }

    def protect(self, job: ProtectContribution) -> ContributionProtected:
        """A body under a fresh mask key, whose shares are sealed to the leaders; the key itself is forgotten."""
        from ofl_iot.crypto.lean import masks, sharing
        from ofl_iot.crypto.sealing import SealingKey, seal

        key, ground = job.key, job.ground
        if key is None or ground is None:
            raise CryptoError("a lean contribution needs the leaders' key and the round's ground")
        context = context_of(self._federation, key.opened)
        values = quantiser.quantise(job.update, ground.bounds, DEFAULT_PRECISION)
        mask = masks.MaskKey.draw(self._entropy)
        domain = masks.MaskDomain(context.key_id, job.round_no)
        body = masks.mask_body(domain, mask, values, DEFAULT_PRECISION, self._entropy)
        header = Header(
            federation=context.federation,
            term=context.term,
            key_id=context.key_id,
            round_no=job.round_no,
            attempt=ground.attempt,
            sender=job.me,
            n_params=job.update.size,
            precision=DEFAULT_PRECISION,
            body=headers.body_digest(body),
            base=headers.base_digest(ground.base.astype("<f4").tobytes()),
            bounds=quantiser.bounds_digest(ground.bounds),
            pinned=tuple(Weighed(leader, weight) for leader, weight in ground.pinned),
        )
        mine = SealingKey(ground.sealing_private)
        publics = {member.leader: member.sealing_key for member in key.opened.members}
        boxes = {
            str(receiver): seal(share, _envelope(header, receiver), mine, publics[receiver], self._entropy)
            for receiver, share in sharing.deal(context, mask, self._entropy).items()
        }
        signed = SignedHeader(header.encode(), self._sign(header.signed_bytes))
        return ContributionProtected(job.round_no, encode_body(LeanUpload(signed, body, boxes)), signed.header)

    def answer(self, job: AnswerLean) -> LeanAnswered:
        """Answer one request of the round in which this leader has an open contribution."""
        stage = job.label.partition(".")[0]
        if stage not in self._stages:
            raise CryptoError(f"a lean round has no stage {stage!r}")
        return self._stages[stage](job)

    # --- stages

    def _sketch(self, job: AnswerLean) -> LeanAnswered:
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.encryption import encrypt
        from ofl_iot.crypto.lean.sketches import sketch

        ask = decode_body(SketchAsk, job.request)
        context, found = self._headers(job, ask.headers)
        if job.own.update is None:
            raise CryptoError("there is no update to sketch")
        values = quantiser.quantise(job.own.update, job.own.bounds, DEFAULT_PRECISION)
        update = quantiser.dequantise(values, job.own.bounds, DEFAULT_PRECISION)
        drawn = sketch(update, found.values(), context.params.degree)
        origin = Origin(context, job.round_no, job.me)
        data = encrypt(public_of(context, job.key.public), drawn, origin, self._entropy).to_bytes()
        _, accused = self._shares(job, found, ask.boxes)
        signature = self._sign(vouchers.sketch_bytes(found.values(), data))
        return self._answered(job, SKETCH, LeanAnswer(data, tuple(sorted(accused)), signature=signature))

    def _scores(self, job: AnswerLean) -> LeanAnswered:
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.encryption import EncryptedModel
        from ofl_iot.crypto.keygen import KEY_ROUND, KeyShare
        from ofl_iot.crypto.lean.sketches import compute_request, relin_of
        from ofl_iot.crypto.relinearisation import RelinFirst
        from ofl_iot.crypto.scalars import partial_scalars
        from ofl_iot.crypto.scores import ScorePlan
        from ofl_iot.ids import COORDINATOR

        ask = decode_body(ScoresAsk, job.request)
        context, found = self._headers(job, ask.headers)
        if not job.sketch or job.me in ask.sketches:
            raise CryptoError("scores are asked for before this leader made its sketch, or with another one")
        if not 1 <= ask.retry <= MOST_TRIES:
            raise CryptoError(f"try {ask.retry} of the scores: a round has at most {MOST_TRIES}")
        own = decode_body(LeanAnswer, job.sketch).data
        verify = self._verify(job.key.opened)

        def read(sender: DeviceId, data: bytes) -> EncryptedModel:
            verify(sender, vouchers.sketch_bytes(found.values(), data), ask.signatures.get(sender, b""))
            return EncryptedModel.from_bytes(data, Origin(context, job.round_no, sender))

        sent = each_of({**ask.sketches, job.me: own}, read)
        first = RelinFirst.from_bytes(job.key.relin_first, Origin(context, KEY_ROUND, COORDINATOR))
        plan = ScorePlan(self._rules.max_energy)
        request = compute_request(
            public_of(context, job.key.public),
            relin_of(first),
            {DeviceId(leader): model for leader, model in sent.items()},
            list(found.values()),
            active=tuple(DeviceId(name) for name in ask.active),
            retry=ask.retry,
            plan=plan,
        )
        share = KeyShare.from_bytes(job.key.share, Origin(context, KEY_ROUND, job.me))
        most = plan.queries(context.leaders) + BINDINGS * context.leaders
        data = partial_scalars(share, request, self._entropy, most).to_bytes()
        models = {DeviceId(leader): model for leader, model in sent.items()}
        numbers, accused = self._numbers(job, context, found, models, ask)
        return self._answered(job, SCORES, LeanAnswer(data, accused, numbers), mark=request.ciphertext_id)

    def _numbers(
        self,
        job: AnswerLean,
        context: KeyContext,
        found: Mapping[str, Header],
        models: Mapping[DeviceId, EncryptedModel],
        ask: ScoresAsk,
    ) -> tuple[bytes, tuple[str, ...]]:
        """One number of each key share and place: with enough of them a body is compared with its sketch."""
        from ofl_iot.crypto.lean.binding import combination, encode_numbers, evaluate, functional, sketches_digest
        from ofl_iot.crypto.lean.masks import MaskDomain
        from ofl_iot.crypto.lean.sharing import decode_share
        from ofl_iot.crypto.lean.sketches import places_of, signs_of

        shares, accused = self._shares(job, {name: found[name] for name in models}, ask.boxes)
        if accused:
            return b"", tuple(sorted(accused))
        degree, size = context.params.degree, job.own.size
        signs = signs_of(found.values(), size, degree)
        domain = MaskDomain(context.key_id, job.round_no)
        places = places_of(found.values(), sketches_digest(models), ask.retry, degree)
        forms = [functional(domain, combination(signs, place, job.own.bounds, size)) for place in places]
        decoded = {DeviceId(name): decode_share(share, name) for name, share in shares.items()}
        return encode_numbers({n: [evaluate(form, s) for form in forms] for n, s in decoded.items()}), ()

    def _vouch(self, job: AnswerLean) -> LeanAnswered:
        ask = decode_body(VouchAsk, job.request)
        context, found = self._headers(job, ask.headers)
        statement = _statement(found, ask.weights)
        vouchers.check_statement(context, statement, decode_header(job.own.header))
        signature = self._sign(statement.signed_bytes)
        vector = tuple((each.leader, each.weight) for each in statement.vector)
        return self._answered(job, VOUCH, LeanAnswer(signature), mark=statement.digest, vector=vector)

    def _open(self, job: AnswerLean) -> LeanAnswered:
        from ofl_iot.crypto.lean import sharing

        ask = decode_body(OpenAsk, job.request)
        context, found = self._headers(job, ask.headers)
        statement = _statement(found, ask.weights)
        vouchers.check_vector(context, statement, job.round_no)
        if job.me in ask.weights:
            vouchers.check_statement(context, statement, decode_header(job.own.header))
        vouchers.check_vouched(statement, ask.signatures, self._verify(job.key.opened))
        vector = tuple((each.leader, each.weight) for each in statement.vector)
        shares, accused = self._shares(job, {name: found[name] for name in ask.weights}, ask.boxes)
        if accused:
            return self._answered(job, OPEN, LeanAnswer(b"", tuple(sorted(accused))), statement.digest, vector)
        weights = {DeviceId(name): weight for name, weight in ask.weights.items()}
        data = sharing.answer({DeviceId(name): share for name, share in shares.items()}, weights)
        return self._answered(job, OPEN, LeanAnswer(data), statement.digest, vector)

    # --- checks

    def _headers(self, job: AnswerLean, sent: Sequence[SignedHeader]) -> tuple[KeyContext, dict[str, Header]]:
        """The round's headers, each signed by its sender, on common ground with this leader's own body."""
        context = context_of(self._federation, job.key.opened)
        found = [decode_header(each.header) for each in sent]
        check_agreement(context, job.round_no, found)
        if job.own.header not in {each.header for each in sent}:
            raise CryptoError("the headers of a round without that of this leader's present body")
        verify = self._verify(job.key.opened)
        for header, each in zip(found, sent, strict=True):
            verify(header.sender, header.signed_bytes, each.signature)
        return context, headers.by_sender(found)

    def _verify(self, opened: KeyOpen) -> vouchers.Verify:
        members = {member.leader: member for member in opened.members}

        def verify(leader: str, data: bytes, signature: bytes) -> None:
            if leader not in members:
                raise CryptoError(f"{leader} is no member of the key")
            if self._trust is not None:
                self._trust.verify(members[leader], data, signature)

        return verify

    def _sign(self, data: bytes) -> bytes:
        """A signature, or nothing where nobody is enrolled: such a federation trusts its broker and coordinator."""
        return self._trust.sign(data) if self._trust is not None else b""

    def _shares(
        self, job: AnswerLean, found: Mapping[str, Header], boxes: Mapping[str, bytes]
    ) -> tuple[dict[str, bytes], set[str]]:
        """The key shares dealt to this leader, and whose boxes do not open or hold no share."""
        from ofl_iot.crypto.lean.sharing import decode_share
        from ofl_iot.crypto.sealing import SealingKey, open_sealed

        mine = SealingKey(job.sealing_private)
        publics = {member.leader: member.sealing_key for member in job.key.opened.members}
        shares: dict[str, bytes] = {}
        accused: set[str] = set()
        for sender, header in found.items():
            try:
                share = open_sealed(boxes.get(sender, b""), _envelope(header, job.me), mine, publics[sender])
                decode_share(share, f"key share from {sender}")
                shares[sender] = share
            except CryptoError:  # noqa: PERF203  # each sender is judged apart
                accused.add(sender)
        return shares, accused

    def _answered(
        self,
        job: AnswerLean,
        stage: str,
        answer: LeanAnswer,
        mark: bytes = b"",
        vector: tuple[tuple[str, int], ...] = (),
    ) -> LeanAnswered:
        return LeanAnswered(
            job.round_no,
            digest_of(job.request).hex(),
            stage,
            job.own.header,
            encode_body(answer),
            mark,
            job.key.key_id,
            vector,
        )


def _statement(found: Mapping[str, Header], weights: Mapping[str, int]) -> vouchers.Statement:
    strangers = sorted(weights.keys() - found.keys())
    if strangers:
        raise CryptoError(f"weights of {', '.join(strangers)} without a header")
    return vouchers.Statement.over(list(found.values()), weights)


def _envelope(header: Header, receiver: str) -> Envelope:
    """A share opens only beside the header of the body whose key it is of."""
    from ofl_iot.crypto.sealing import Envelope
    from ofl_iot.ids import Term

    return Envelope(
        FederationId(header.federation),
        Term(header.term),
        DeviceId(header.sender),
        DeviceId(receiver),
        f"lean share beside {header.digest.hex()}",
    )
