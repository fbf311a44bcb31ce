"""The coordinator's cryptographic jobs, on the library in `ofl_iot.crypto`: it computes on what it cannot read.

Importing the kernels costs a second and tens of megabytes, so everything here loads them when a job needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ofl_iot.errors import CryptoError, RoundError
from ofl_iot.ids import COORDINATOR, DeviceId, FederationId
from ofl_iot.robust.scores import RoundScores
from ofl_iot.robust.verdict import Verdict
from ofl_iot.roles.commands import (
    Contributed,
    CoordinatorKey,
    FinishRound,
    MakeKeys,
    ScoreRound,
    WeighRound,
)
from ofl_iot.roles.decryption import MODEL, SCORES
from ofl_iot.roles.events import (
    DecryptionRequested,
    KeysMade,
    RoundAggregated,
)
from ofl_iot.roles.rules import ProtectionRules
from ofl_iot.runtime.joint_key import (
    FEWEST_CONTRIBUTORS,
    context_of,
    each_of,
    ones_of,
    public_of,
)
from ofl_iot.runtime.weighing import weigh

if TYPE_CHECKING:
    from ofl_iot.crypto.context import KeyContext
    from ofl_iot.crypto.encryption import EncryptedModel, PublicKey
    from ofl_iot.crypto.entropy import Entropy
    from ofl_iot.crypto.scalars import HeldScalars
    from ofl_iot.crypto.threshold import HeldDecryption


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
        contributions, firsts = ones_of(context, job.ones)
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
        public = public_of(context, job.key.public)
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
