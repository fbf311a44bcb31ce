"""A leader's cryptographic jobs, on the library in `ofl_iot.crypto`.

Importing the kernels costs a second and tens of megabytes, so everything here loads them when a job needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ofl_iot.crypto.params import LEAN
from ofl_iot.errors import CryptoError, OflError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from ofl_iot.jobs.joint_key import (
    FEWEST_CONTRIBUTORS,
    context_of,
    each_of,
    public_of,
    round1_of,
)
from ofl_iot.jobs.lean_leader import LeanLeader
from ofl_iot.protocol.codec import decode_body, encode_body
from ofl_iot.protocol.key_messages import KeyOne, KeyOpen, PartDecAsk
from ofl_iot.protocol.parts import digest_of
from ofl_iot.roles.decryption.requester import SCORES
from ofl_iot.roles.events import (
    ContributionProtected,
    DecryptionAnswered,
    KeysBegun,
    KeysFinished,
    OrderJudged,
    SealingKeyMade,
)
from ofl_iot.roles.job_kinds.device import JudgeOrder
from ofl_iot.roles.job_kinds.keys import AnswerDecryption, BeginKeys, FinishKeys, KeyMaterial, MakeSealingKey
from ofl_iot.roles.job_kinds.rounds import ProtectContribution
from ofl_iot.roles.settings import ProtectionRules

if TYPE_CHECKING:
    from ofl_iot.crypto.context import KeyContext
    from ofl_iot.crypto.entropy import Entropy
    from ofl_iot.crypto.sealing import Envelope
    from ofl_iot.identity.enrolment import Enrolment, SealingTrust


class LeaderCrypto:
    """A leader's jobs."""

    def __init__(
        self, federation: FederationId, rules: ProtectionRules, entropy: Entropy, trust: SealingTrust | None = None
    ) -> None:
        """An enrolled leader has a `trust`, by which it judges the sealing keys of others."""
        self._federation = federation
        self._rules = rules
        self._entropy = entropy
        self._trust = trust
        self.lean = LeanLeader(federation, rules, entropy, trust)

    def judge_order(self, job: JudgeOrder) -> OrderJudged:
        """Judge an operator's order; a device that is not enrolled obeys none."""
        if self._trust is None:
            return OrderJudged(job.order, refusal="this device is not enrolled, so it cannot tell who signed")
        from ofl_iot.jobs.operator_orders import OrderTrust

        try:
            return OrderJudged(job.order, OrderTrust(self._trust.enrolled, self._trust.clock).check(job.order))
        except OflError as error:
            return OrderJudged(job.order, refusal=str(error))

    def make_sealing_key(self, _job: MakeSealingKey) -> SealingKeyMade:
        """Draw an X25519 key; an enrolled device has one that its certificate names."""
        from ofl_iot.crypto.sealing import SealingKey

        if self._trust is not None:
            return sealing_key_of(self._trust.enrolled())
        key = SealingKey.generate(self._entropy)
        return SealingKeyMade(key.private_bytes, key.public_bytes)

    def begin_keys(self, job: BeginKeys) -> KeysBegun:
        """Draw the secret, make the broadcast, deal the secret to each member under seal."""
        from ofl_iot.crypto import keygen, relinearisation
        from ofl_iot.crypto.sealing import SealingKey, seal

        if job.opened.params != self._rules.params:
            raise CryptoError(
                f"the coordinator asks for rounds of the kind {job.opened.params!r}; this leader's settings say "
                f"protection.params = {self._rules.params!r}"
            )
        self._check_members(job.opened)
        context = context_of(self._federation, job.opened)
        secret = keygen.generate_secret(context, job.me, self._entropy)
        one = encode_body(
            KeyOne(
                keygen.generate_share(secret, self._entropy).to_bytes(),
                relinearisation.generate_share(secret, self._entropy).to_bytes(),
            )
        )
        mine = SealingKey(job.sealing_private)
        publics = {member.leader: member.sealing_key for member in job.opened.members}
        deals = {
            str(receiver): seal(
                deal.to_bytes(), self._envelope(context, job.me, receiver, one), mine, publics[receiver], self._entropy
            )
            for receiver, deal in keygen.generate_deals(secret, self._entropy).items()
        }
        return KeysBegun(job.opened.term, job.opened.attempt, secret.to_bytes(), one, deals)

    def finish_keys(self, job: FinishKeys) -> KeysFinished:
        """Sum the broadcasts into the public key and the deals into the key share; complete the relinearisation."""
        from ofl_iot.crypto import keygen, relinearisation
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.sealing import SealingKey, open_sealed

        context = context_of(self._federation, job.opened)
        publics = {member.leader: member.sealing_key for member in job.opened.members}
        contributions, firsts = round1_of(context, job.round1_shares)
        public = keygen.combine_shares(context, contributions)
        mine = SealingKey(job.sealing_private)

        def unseal(sender: DeviceId, box: bytes) -> keygen.KeyDeal:
            envelope = self._envelope(context, sender, job.me, job.round1_shares[sender])
            opened = open_sealed(box, envelope, mine, publics[sender])
            deal = keygen.KeyDeal.from_bytes(opened, Origin(context, keygen.KEY_ROUND, sender))
            if deal.receiver != job.me:
                raise CryptoError(f"key deal from {sender}: made for {deal.receiver}")
            return deal

        share = keygen.combine_deals(context, job.me, each_of(job.deals, unseal).values())
        secret = keygen.LeaderSecret.from_bytes(job.secret, Origin(context, keygen.KEY_ROUND, job.me))
        first = relinearisation.combine_shares(context, firsts)
        two = relinearisation.complete_share(secret, first, self._entropy)
        kept = first.to_bytes() if context.params == LEAN else b""
        material = KeyMaterial(job.opened, context.key_id, public.to_bytes(), share.to_bytes(), kept)
        return KeysFinished(job.opened.term, job.opened.attempt, material, two.to_bytes())

    def protect(self, job: ProtectContribution) -> ContributionProtected:
        """Mask or encrypt an update; without a key it stays in the clear, and the kernels stay unloaded."""
        if job.key is None:
            return ContributionProtected(job.round_no, job.update.astype("<f4").tobytes())
        if job.key.opened.params == LEAN.name:
            return self.lean.protect(job)
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.encryption import encrypt

        context = context_of(self._federation, job.key.opened)
        origin = Origin(context, job.round_no, job.me)
        sealed = encrypt(public_of(context, job.key.public), job.update, origin, self._entropy)
        return ContributionProtected(job.round_no, sealed.to_bytes())

    def answer(self, job: AnswerDecryption) -> DecryptionAnswered:
        """PartDec of scores or of the model."""
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.keygen import KEY_ROUND, KeyShare
        from ofl_iot.crypto.scalars import ScalarRequest, partial_scalars
        from ofl_iot.crypto.scores import ScorePlan
        from ofl_iot.crypto.threshold import DecryptionRequest, partial_decrypt

        context = context_of(self._federation, job.key.opened)
        share = KeyShare.from_bytes(job.key.share, Origin(context, KEY_ROUND, job.me))
        asked = Origin(context, job.round_no, self._rules.server)
        frame = self._frame_of(job)
        request: ScalarRequest | DecryptionRequest
        if job.label.startswith(SCORES):
            most = ScorePlan(self._rules.max_energy).queries(context.leaders)
            request = ScalarRequest.from_bytes(frame, asked)
            answer = partial_scalars(share, request, self._entropy, most).to_bytes()
            rows = 0
        else:
            request = DecryptionRequest.from_bytes(frame, asked)
            if request.n_params != job.size:
                raise CryptoError(f"a request to decrypt {request.n_params} parameters: the model has {job.size}")
            answer = partial_decrypt(share, request, self._entropy, FEWEST_CONTRIBUTORS).to_bytes()
            rows = request.c1.shape[1]
        digest = digest_of(job.request).hex()
        names = tuple(map(str, request.contributors))
        return DecryptionAnswered(job.round_no, digest, request.ciphertext_id.hex(), answer, names, rows)

    def _check_members(self, opened: KeyOpen) -> None:
        """CulpritError names the members whose sealing keys the federation's authority does not vouch for."""
        if self._trust is None:
            return
        trust, keys = self._trust, {str(each.leader): each.sealing_key for each in opened.members}
        shown = {str(each.leader): each.certificate for each in opened.members}
        each_of(shown, lambda leader, certificate: trust.check(leader, keys[leader], certificate))

    def _frame_of(self, job: AnswerDecryption) -> bytes:
        """The request itself; one of the decryptor also says with which public key it was made fresh."""
        if self._rules.server == COORDINATOR:
            return job.request
        ask = decode_body(PartDecAsk, job.request)
        if ask.public != digest_of(job.key.public):
            raise CryptoError("the decryptor was given another public key than the leaders made")
        return ask.request

    def _envelope(self, context: KeyContext, sender: DeviceId, receiver: DeviceId, one: bytes) -> Envelope:
        """A deal opens only beside the broadcast it was made with: nobody on the way can swap that one."""
        from ofl_iot.crypto.sealing import Envelope

        return Envelope(
            context.federation,
            context.term,
            sender,
            receiver,
            f"key deal {context.attempt} beside {digest_of(one).hex()}",
        )


def sealing_key_of(enrolled: Enrolment) -> SealingKeyMade:
    """The sealing key of an enrolled device with the certificate that names it."""
    return SealingKeyMade(enrolled.sealing_private, enrolled.credential.bearer.sealing_public, enrolled.certificate)
