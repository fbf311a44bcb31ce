"""Runs the cryptographic jobs of leaders and coordinator on the library in `ofl_iot.crypto`, which it loads on demand.

Importing the kernels costs a second and tens of megabytes, so a device that never leads never pays for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ofl_iot.errors import CryptoError, ProtocolError, RoundError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId, Term
from ofl_iot.protocol.codec import decode_body, encode_body
from ofl_iot.protocol.messages import KeyOne, KeyOpen
from ofl_iot.protocol.parts import digest_of
from ofl_iot.robust.scores import RoundScores
from ofl_iot.robust.sfactors import s_factor
from ofl_iot.robust.verdict import Verdict
from ofl_iot.robust.weights import cluster_weights
from ofl_iot.roles.commands import (
    AnswerDecryption,
    BeginKeys,
    Contributed,
    CoordinatorKey,
    FinishKeys,
    FinishRound,
    KeyMaterial,
    MakeKeys,
    MakeSealingKey,
    ProtectContribution,
    ScoreRound,
    WeighRound,
)
from ofl_iot.roles.decryption import MODEL, SCORES
from ofl_iot.roles.events import (
    DecryptionAnswered,
    DecryptionRequested,
    KeysBegun,
    KeysFinished,
    KeysMade,
    RoundAggregated,
    SealingKeyMade,
)
from ofl_iot.roles.rules import ProtectionRules

if TYPE_CHECKING:
    from ofl_iot.crypto.context import KeyContext
    from ofl_iot.crypto.encryption import EncryptedModel, PublicKey
    from ofl_iot.crypto.entropy import Entropy
    from ofl_iot.crypto.keygen import KeyContribution
    from ofl_iot.crypto.relinearisation import RelinContribution
    from ofl_iot.crypto.scalars import HeldScalars
    from ofl_iot.crypto.sealing import Envelope
    from ofl_iot.crypto.threshold import HeldDecryption

T = TypeVar("T")

FEWEST_CONTRIBUTORS = 2
"""An aggregate of one is somebody's update: leaders refuse to decrypt it."""


class CulpritError(CryptoError):
    """What these leaders sent cannot be used, and it is known that it was they."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__("; ".join(faults.values()))
        self.culprits = tuple(sorted(faults))


def each_of(sent: Mapping[str, bytes], read: Callable[[DeviceId, bytes], T]) -> dict[str, T]:
    """Read what each leader sent; raises CulpritError that names everyone whose bytes are not what they must be."""
    good: dict[str, T] = {}
    faults: dict[str, str] = {}
    for sender, data in sent.items():
        try:
            good[sender] = read(DeviceId(sender), data)
        except (CryptoError, ProtocolError) as error:  # noqa: PERF203  # each leader is judged apart
            faults[sender] = f"{sender}: {error}"
    if faults:
        raise CulpritError(faults)
    return good


def context_of(federation: FederationId, opened: KeyOpen) -> KeyContext:
    """Which key a key generation makes."""
    from ofl_iot.crypto.context import KeyContext
    from ofl_iot.crypto.params import parameter_set

    return KeyContext(
        params=parameter_set(opened.params),
        federation=federation,
        term=Term(opened.term),
        members=tuple(DeviceId(member.leader) for member in opened.members),
        threshold=opened.threshold,
        attempt=opened.attempt,
    )


class LeaderCrypto:
    """A leader's jobs."""

    def __init__(self, federation: FederationId, rules: ProtectionRules, entropy: Entropy) -> None:
        self._federation = federation
        self._rules = rules
        self._entropy = entropy

    def make_sealing_key(self, _job: MakeSealingKey) -> SealingKeyMade:
        """Draw an X25519 key."""
        from ofl_iot.crypto.sealing import SealingKey

        key = SealingKey.generate(self._entropy)
        return SealingKeyMade(key.private_bytes, key.public_bytes)

    def begin_keys(self, job: BeginKeys) -> KeysBegun:
        """Draw the secret, make the broadcast, deal the secret to each member under seal."""
        from ofl_iot.crypto import keygen, relinearisation
        from ofl_iot.crypto.sealing import SealingKey, seal

        context = context_of(self._federation, job.opened)
        secret = keygen.generate_secret(context, job.me, self._entropy)
        one = KeyOne(
            keygen.generate_share(secret, self._entropy).to_bytes(),
            relinearisation.generate_share(secret, self._entropy).to_bytes(),
        )
        mine = SealingKey(job.sealing_private)
        publics = {member.leader: member.sealing_key for member in job.opened.members}
        deals = {
            str(receiver): seal(
                deal.to_bytes(), self._envelope(context, job.me, receiver), mine, publics[receiver], self._entropy
            )
            for receiver, deal in keygen.generate_deals(secret, self._entropy).items()
        }
        return KeysBegun(job.opened.term, job.opened.attempt, secret.to_bytes(), encode_body(one), deals)

    def finish_keys(self, job: FinishKeys) -> KeysFinished:
        """Sum the broadcasts into the public key and the deals into the key share; complete the relinearisation."""
        from ofl_iot.crypto import keygen, relinearisation
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.sealing import SealingKey, open_sealed

        context = context_of(self._federation, job.opened)
        publics = {member.leader: member.sealing_key for member in job.opened.members}
        contributions, firsts = _ones(context, job.ones)
        public = keygen.combine_shares(context, contributions)
        mine = SealingKey(job.sealing_private)

        def unseal(sender: DeviceId, box: bytes) -> keygen.KeyDeal:
            opened = open_sealed(box, self._envelope(context, sender, job.me), mine, publics[sender])
            deal = keygen.KeyDeal.from_bytes(opened, Origin(context, keygen.KEY_ROUND, sender))
            if deal.receiver != job.me:
                raise CryptoError(f"key deal from {sender}: made for {deal.receiver}")
            return deal

        share = keygen.combine_deals(context, job.me, each_of(job.deals, unseal).values())
        secret = keygen.LeaderSecret.from_bytes(job.secret, Origin(context, keygen.KEY_ROUND, job.me))
        first = relinearisation.combine_shares(context, firsts)
        two = relinearisation.complete_share(secret, first, self._entropy)
        material = KeyMaterial(job.opened, context.key_id, public.to_bytes(), share.to_bytes())
        return KeysFinished(job.opened.term, job.opened.attempt, material, two.to_bytes())

    def protect(self, job: ProtectContribution) -> bytes:
        """Encrypt an update under the joint key."""
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.encryption import encrypt

        if job.key is None:
            return job.update.astype("<f4").tobytes()
        context = context_of(self._federation, job.key.opened)
        origin = Origin(context, job.round_no, job.me)
        return encrypt(_public(context, job.key.public), job.update, origin, self._entropy).to_bytes()

    def answer(self, job: AnswerDecryption) -> DecryptionAnswered:
        """PartDec of scores or of the model."""
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.keygen import KEY_ROUND, KeyShare
        from ofl_iot.crypto.scalars import ScalarRequest, partial_scalars
        from ofl_iot.crypto.scores import ScorePlan
        from ofl_iot.crypto.threshold import DecryptionRequest, partial_decrypt

        context = context_of(self._federation, job.key.opened)
        share = KeyShare.from_bytes(job.key.share, Origin(context, KEY_ROUND, job.me))
        asked = Origin(context, job.round_no, COORDINATOR)
        request: ScalarRequest | DecryptionRequest
        if job.label.startswith(SCORES):
            most = ScorePlan(self._rules.max_energy).queries(context.leaders)
            request = ScalarRequest.from_bytes(job.request, asked)
            answer = partial_scalars(share, request, self._entropy, most).to_bytes()
        else:
            request = DecryptionRequest.from_bytes(job.request, asked)
            answer = partial_decrypt(share, request, self._entropy, FEWEST_CONTRIBUTORS).to_bytes()
        return DecryptionAnswered(job.round_no, digest_of(job.request).hex(), request.ciphertext_id.hex(), answer)

    def _envelope(self, context: KeyContext, sender: DeviceId, receiver: DeviceId) -> Envelope:
        from ofl_iot.crypto.sealing import Envelope

        return Envelope(context.federation, context.term, sender, receiver, f"key deal {context.attempt}")


@dataclass
class _RoundInHand:
    """What the coordinator keeps of an encrypted round between its jobs."""

    context: KeyContext
    public: PublicKey
    models: dict[DeviceId, EncryptedModel]
    contributions: Mapping[str, Contributed]
    refused: dict[str, str]
    scores: HeldScalars
    weights: dict[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None
    model: HeldDecryption | None = None


class CoordinatorCrypto:
    """The coordinator's jobs: it computes on what it cannot read."""

    def __init__(self, federation: FederationId, rules: ProtectionRules, entropy: Entropy) -> None:
        self._federation = federation
        self._rules = rules
        self._entropy = entropy
        self._round: _RoundInHand | None = None
        self._round_no = -1

    def make_keys(self, job: MakeKeys) -> KeysMade:
        """Sum the public parts of the joint key."""
        from ofl_iot.crypto import keygen, relinearisation
        from ofl_iot.crypto.context import Origin

        context = context_of(self._federation, job.opened)
        contributions, firsts = _ones(context, job.ones)
        public = keygen.combine_shares(context, contributions)

        def complete(sender: DeviceId, two: bytes) -> relinearisation.RelinCompletion:
            return relinearisation.RelinCompletion.from_bytes(two, Origin(context, keygen.KEY_ROUND, sender))

        completions = list(each_of(job.twos, complete).values())
        relin = relinearisation.combine_completions(relinearisation.combine_shares(context, firsts), completions)
        return KeysMade(CoordinatorKey(job.opened, context.key_id, public.to_bytes(), relin.to_bytes()))

    def score(self, job: ScoreRound) -> DecryptionRequested:
        """Scores on ciphertext; contributions that are no valid ciphertexts are left out."""
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.keygen import KEY_ROUND
        from ofl_iot.crypto.relinearisation import RelinKey
        from ofl_iot.crypto.scores import ScorePlan, request_scores

        context = context_of(self._federation, job.key.opened)
        public = _public(context, job.key.public)
        relin = RelinKey.from_bytes(job.key.relin, Origin(context, KEY_ROUND, COORDINATOR))
        models, refused = _usable(context, job)
        if len(models) < FEWEST_CONTRIBUTORS:
            raise RoundError(
                f"{len(models)} usable contributions, at least {FEWEST_CONTRIBUTORS} are needed: "
                f"{'; '.join(f'{leader}: {why}' for leader, why in refused.items())}"
            )
        held, request = request_scores(
            public,
            relin,
            models,
            np.zeros(job.size, np.float32),
            plan=ScorePlan(self._rules.max_energy),
            active=tuple(DeviceId(leader) for leader in job.active),
            entropy=self._entropy,
        )
        by_leader = {each.leader: each for each in job.contributions}
        self._round = _RoundInHand(context, public, models, by_leader, refused, held)
        self._round_no = job.round_no
        return DecryptionRequested(job.round_no, SCORES, request.to_bytes())

    def weigh(self, job: WeighRound) -> DecryptionRequested:
        """Judge the scores once, then make the weighted sum ready for this active set."""
        from ofl_iot.crypto.encryption import weighted_sum
        from ofl_iot.crypto.threshold import server_decrypt

        held = self._in_hand(job.round_no)
        if job.shares:
            self._judge(held, job)
        leaders = [leader for leader, weight in held.weights.items() if weight > 0]
        if len(leaders) < FEWEST_CONTRIBUTORS:
            raise RoundError(f"{len(leaders)} clusters count, at least {FEWEST_CONTRIBUTORS} must")
        ids = [DeviceId(leader) for leader in leaders]
        total = weighted_sum([held.models[leader] for leader in ids], [held.weights[leader] for leader in ids])
        active = tuple(DeviceId(leader) for leader in job.active)
        held.model, request = server_decrypt(held.public, total, active, ids, self._entropy)
        return DecryptionRequested(job.round_no, MODEL, request.to_bytes())

    def finish(self, job: FinishRound) -> RoundAggregated:
        """FinDec: the weighted sum in the clear."""
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.threshold import DecryptionShare, final_decrypt

        held = self._in_hand(job.round_no)
        if held.model is None or held.verdict is None:
            raise RoundError("the model was not asked for")
        asked = held.model

        def read(leader: DeviceId, data: bytes) -> DecryptionShare:
            share = DecryptionShare.from_bytes(data, Origin(held.context, job.round_no, leader))
            _check_answer(share.request_id, asked.request_id, share.values.shape == asked.c0.shape)
            return share

        update = final_decrypt(asked, list(each_of(job.shares, read).values())).astype(np.float32)
        self._round = None
        return RoundAggregated(
            job.round_no,
            update,
            held.weights,
            held.refused,
            {str(leader): value for leader, value in held.verdict.evidence_after.items()},
            {str(leader): reason for leader, reason in held.verdict.reasons.items()},
            tuple(sorted(held.verdict.excluded)),
        )

    def _judge(self, held: _RoundInHand, job: WeighRound) -> None:
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.scalars import ScalarShare
        from ofl_iot.crypto.scores import ScorePlan, combine_scores

        asked = held.scores

        def read(leader: DeviceId, data: bytes) -> ScalarShare:
            share = ScalarShare.from_bytes(data, Origin(held.context, job.round_no, leader))
            _check_answer(share.request_id, asked.request_id, len(share.values) == len(asked.queries))
            return share

        shares = list(each_of(job.shares, read).values())
        scores = combine_scores(asked, shares, ScorePlan(self._rules.max_energy))
        wrapped = set(scores.wrapped())
        for leader in wrapped:
            held.refused[leader] = "its update is too large to be scored, or made to wrap around"
        leaders = tuple(leader for leader in scores.distance if leader not in wrapped)
        if scores.gram is None or len(leaders) < FEWEST_CONTRIBUTORS:
            raise RoundError(f"{len(leaders)} contributions can be scored")
        places = [list(scores.distance).index(leader) for leader in leaders]
        band = next(iter(scores.bands.values()))
        round_scores = RoundScores(
            leaders,
            np.array([max(0.0, scores.distance[leader]) for leader in leaders]),
            np.array([band[leader] for leader in leaders]),
            scores.gram[np.ix_(places, places)],
        )
        held.weights, held.verdict = weigh(round_scores, held.contributions, job.evidence, self._rules.s_factor)

    def _in_hand(self, round_no: int) -> _RoundInHand:
        if self._round is None or round_no != self._round_no:
            raise RoundError(f"round {round_no} is not in hand")
        return self._round


def weigh(
    scores: RoundScores, contributions: Mapping[str, Contributed], evidence: Mapping[str, float], form: str
) -> tuple[dict[str, float], Verdict]:
    """Each leader's weight: data size · rarity · s-factor (Eq. 6), over those that merged anything."""
    verdict = s_factor(form)(scores, {DeviceId(leader): value for leader, value in evidence.items()})
    rows = [contributions[leader] for leader in scores.leaders]
    sizes = [float(row.sample_count if row.updates else 0) for row in rows]
    merges = [row.updates / max(1, row.members) for row in rows]
    weights = cluster_weights(sizes, verdict.multipliers, merges, renormalise=verdict.renormalise)
    return {str(leader): float(weight) for leader, weight in zip(scores.leaders, weights, strict=True)}, verdict


def _ones(context: KeyContext, ones: Mapping[str, bytes]) -> tuple[list[KeyContribution], list[RelinContribution]]:
    """The members' broadcasts: their parts of the public key and of the relinearisation key."""
    from ofl_iot.crypto import keygen, relinearisation
    from ofl_iot.crypto.context import Origin

    def read(sender: DeviceId, body: bytes) -> tuple[KeyContribution, RelinContribution]:
        one = decode_body(KeyOne, body)
        origin = Origin(context, keygen.KEY_ROUND, sender)
        return (
            keygen.KeyContribution.from_bytes(one.contribution, origin),
            relinearisation.RelinContribution.from_bytes(one.relin, origin),
        )

    pairs = each_of(ones, read).values()
    return [contribution for contribution, _ in pairs], [first for _, first in pairs]


def _usable(context: KeyContext, job: ScoreRound) -> tuple[dict[DeviceId, EncryptedModel], dict[str, str]]:
    """The contributions that are fresh ciphertexts of a model of the right size, and why the others are not."""
    from ofl_iot.crypto.context import Origin
    from ofl_iot.crypto.encryption import EncryptedModel

    models: dict[DeviceId, EncryptedModel] = {}
    refused: dict[str, str] = {}
    for each in job.contributions:
        leader = DeviceId(each.leader)
        try:
            model = EncryptedModel.from_bytes(each.payload, Origin(context, job.round_no, leader))
        except CryptoError as error:
            refused[each.leader] = str(error)
            continue
        if model.n_params != job.size or model.scale_bits != context.params.scale_bits:
            refused[each.leader] = (
                f"model from {leader}: {model.n_params} parameters, not the {job.size} of a fresh model"
            )
        else:
            models[leader] = model
    return models, refused


def _check_answer(request_id: bytes, asked: bytes, fits: bool) -> None:  # noqa: FBT001
    if request_id != asked:
        raise CryptoError("a share that answers another request (replayed, or of another round)")
    if not fits:
        raise CryptoError("a share of another size than asked for")


def _public(context: KeyContext, stored: bytes) -> PublicKey:
    from ofl_iot.crypto.context import Origin
    from ofl_iot.crypto.encryption import PublicKey
    from ofl_iot.crypto.keygen import KEY_ROUND

    return PublicKey.from_bytes(stored, Origin(context, KEY_ROUND, COORDINATOR))
