"""The coordinator's cryptographic jobs, on the library in `ofl_iot.crypto`: it computes on what it cannot read.

Importing the kernels costs a second and tens of megabytes, so everything here loads them when a job needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ofl_iot.errors import CryptoError, RoundError
from ofl_iot.ids import COORDINATOR, DECRYPTOR, DeviceId, FederationId
from ofl_iot.jobs.decrypt import EntrustedServerDec, OwnServerDec, ServerDec
from ofl_iot.jobs.joint_key import (
    FEWEST_CONTRIBUTORS,
    context_of,
    each_of,
    public_of,
    round1_of,
)
from ofl_iot.jobs.lean_round import LeanCoordinator
from ofl_iot.jobs.weighing import judge
from ofl_iot.robust.verdict import Verdict
from ofl_iot.robust.weights import without_dominant
from ofl_iot.roles.decryption.requester import MODEL, SCORES
from ofl_iot.roles.events import (
    DecryptionRequested,
    KeysMade,
    RoundAggregated,
)
from ofl_iot.roles.job_kinds.keys import CoordinatorKey, MakeKeys
from ofl_iot.roles.job_kinds.rounds import Contributed, FinishRound, ScoreRound, WeighRound
from ofl_iot.roles.settings import ProtectionRules

if TYPE_CHECKING:
    from ofl_iot.crypto.context import KeyContext
    from ofl_iot.crypto.encryption import EncryptedModel, PublicKey
    from ofl_iot.crypto.entropy import Entropy


@dataclass
class _RoundInHand:
    """What one job of an encrypted round leaves for the next; the machine passes it on unread."""

    public: PublicKey
    models: dict[DeviceId, EncryptedModel]
    contributions: Mapping[str, Contributed]
    refused: dict[str, str]
    server_dec: ServerDec
    weights: dict[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None


class CoordinatorCrypto:
    """The coordinator's jobs, functions of their arguments: it computes on what it cannot read."""

    def __init__(self, federation: FederationId, rules: ProtectionRules, entropy: Entropy) -> None:
        self._federation = federation
        self._rules = rules
        self._entropy = entropy
        self.lean = LeanCoordinator(federation, rules, entropy)

    def make_keys(self, job: MakeKeys) -> KeysMade:
        """Sum the public parts of the joint key."""
        from ofl_iot.crypto import keygen, relinearisation
        from ofl_iot.crypto.context import Origin

        context = context_of(self._federation, job.opened)
        contributions, firsts = round1_of(context, job.round1_shares)
        public = keygen.combine_shares(context, contributions)

        def complete(sender: DeviceId, two: bytes) -> relinearisation.RelinCompletion:
            return relinearisation.RelinCompletion.from_bytes(two, Origin(context, keygen.KEY_ROUND, sender))

        completions = list(each_of(job.round2_shares, complete).values())
        relin = relinearisation.combine_completions(relinearisation.combine_shares(context, firsts), completions)
        return KeysMade(CoordinatorKey(job.opened, context.key_id, public.to_bytes(), relin.to_bytes()))

    def score(self, job: ScoreRound) -> DecryptionRequested:
        """Scores on ciphertext; contributions that are no valid ciphertexts are left out."""
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.keygen import KEY_ROUND
        from ofl_iot.crypto.relinearisation import RelinKey
        from ofl_iot.crypto.scores import ScorePlan, score_models

        context = context_of(self._federation, job.key.opened)
        public = public_of(context, job.key.public)
        relin = RelinKey.from_bytes(job.key.relin, Origin(context, KEY_ROUND, COORDINATOR))
        models, refused = _usable(context, job)
        if len(models) < FEWEST_CONTRIBUTORS:
            raise RoundError(
                f"{len(models)} usable contributions, at least {FEWEST_CONTRIBUTORS} are needed: "
                f"{'; '.join(f'{leader}: {why}' for leader, why in refused.items())}"
            )
        plan = ScorePlan(self._rules.max_energy)
        scores = score_models(relin, models, np.zeros(job.size, np.float32), plan=plan, entropy=self._entropy)
        server_dec = EntrustedServerDec() if self._rules.server == DECRYPTOR else OwnServerDec(self._entropy)
        request = server_dec.ask_scores(public, scores, job.active)
        by_leader = {each.leader: each for each in job.contributions}
        held = _RoundInHand(public, models, by_leader, refused, server_dec)
        return DecryptionRequested(job.round_no, SCORES, request, tuple(models), held)

    def weigh(self, job: WeighRound) -> DecryptionRequested:
        """Judge the scores once, then make the weighted sum ready for this active set."""
        from ofl_iot.crypto.encryption import weighted_sum

        before = _in_hand(job)
        held = replace(before, refused=dict(before.refused), server_dec=copy(before.server_dec))
        if job.shares or job.values:
            self._judge(held, job)
        leaders = [leader for leader, weight in held.weights.items() if weight > 0]
        if len(leaders) < FEWEST_CONTRIBUTORS:
            raise RoundError(f"{len(leaders)} clusters count, at least {FEWEST_CONTRIBUTORS} must")
        ids = [DeviceId(leader) for leader in leaders]
        total = weighted_sum([held.models[leader] for leader in ids], [held.weights[leader] for leader in ids])
        request = held.server_dec.ask_model(held.public, total, job.active, ids)
        return DecryptionRequested(job.round_no, MODEL, request, tuple(leaders), held)

    def finish(self, job: FinishRound) -> RoundAggregated:
        """FinDec: the weighted sum in the clear."""
        held = _in_hand(job)
        if held.verdict is None:
            raise RoundError("the model was not asked for")
        update = held.server_dec.model(job)
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
        from ofl_iot.crypto.scores import ScorePlan

        scores = held.server_dec.scores(job, ScorePlan(self._rules.max_energy))
        weights, held.verdict, refused = judge(scores, held.contributions, job.evidence, self._rules.s_factor)
        held.refused |= refused
        held.weights = without_dominant(weights)


def _in_hand(job: WeighRound | FinishRound) -> _RoundInHand:
    if not isinstance(job.held, _RoundInHand):
        raise RoundError(f"round {job.round_no} was not scored")
    return job.held


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
