"""ServerDec and FinDec: done by the coordinator itself, or left to the decryptor.

Importing the kernels costs a second and tens of megabytes, so everything here loads them when a job needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ofl_iot.errors import CryptoError, RoundError
from ofl_iot.ids import COORDINATOR, DECRYPTOR, DeviceId, FederationId
from ofl_iot.jobs.joint_key import FEWEST_CONTRIBUTORS, context_of, each_of, public_of
from ofl_iot.protocol.codec import encode_body
from ofl_iot.protocol.key_messages import PartDecAsk
from ofl_iot.protocol.parts import digest_of
from ofl_iot.roles.decryption.requester import SCORES
from ofl_iot.roles.events import FinalDecrypted, ServerDecrypted, Vector
from ofl_iot.roles.job_kinds.keys import FinalDecrypt, ServerDecrypt
from ofl_iot.roles.job_kinds.rounds import FinishRound, WeighRound

if TYPE_CHECKING:
    from ofl_iot.crypto.encryption import EncryptedModel, PublicKey
    from ofl_iot.crypto.entropy import Entropy
    from ofl_iot.crypto.scalars import HeldScalars, ScalarCiphertexts
    from ofl_iot.crypto.scores import ScorePlan, Scores
    from ofl_iot.crypto.threshold import HeldDecryption

_SCORE, _PARAMETER = np.dtype("<i8"), np.dtype("<f4")


class ServerDec(Protocol):
    """How a round's ciphertexts become numbers: bytes for whoever decrypts, then what came back."""

    def ask_scores(self, public: PublicKey, scores: ScalarCiphertexts, active: Sequence[str]) -> bytes:
        """What to send for the scores."""
        ...

    def scores(self, job: WeighRound, plan: ScorePlan) -> Scores:
        """The scores in the clear."""
        ...

    def ask_model(
        self, public: PublicKey, total: EncryptedModel, active: Sequence[str], contributors: Sequence[DeviceId]
    ) -> bytes:
        """What to send for the weighted sum."""
        ...

    def model(self, job: FinishRound) -> Vector:
        """The weighted sum in the clear."""
        ...


class OwnServerDec:
    """The coordinator performs ServerDec and keeps the other halves until the shares are in."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._scores: HeldScalars | None = None
        self._model: HeldDecryption | None = None

    def ask_scores(self, public: PublicKey, scores: ScalarCiphertexts, active: Sequence[str]) -> bytes:
        """The request to the active set."""
        from ofl_iot.crypto.scalars import server_scalars

        self._scores, request = server_scalars(public, scores, _ids(active), self._entropy)
        return request.to_bytes()

    def scores(self, job: WeighRound, plan: ScorePlan) -> Scores:
        """FinDec of the scores."""
        from ofl_iot.crypto.scores import read_scores

        if self._scores is None:
            raise RoundError("the scores were not asked for")
        return read_scores(self._scores, decrypt_scores_of(self._scores, job.shares), len(self._scores.active), plan)

    def ask_model(
        self, public: PublicKey, total: EncryptedModel, active: Sequence[str], contributors: Sequence[DeviceId]
    ) -> bytes:
        """The request to the active set."""
        from ofl_iot.crypto.threshold import server_decrypt

        self._model, request = server_decrypt(public, total, _ids(active), contributors, self._entropy)
        return request.to_bytes()

    def model(self, job: FinishRound) -> Vector:
        """FinDec of the weighted sum."""
        if self._model is None:
            raise RoundError("the model was not asked for")
        return _decrypt_model(self._model, job.shares)


class EntrustedServerDec:
    """The decryptor performs ServerDec; the coordinator gives it ciphertexts and gets numbers."""

    def __init__(self) -> None:
        self._scores: ScalarCiphertexts | None = None
        self._size = 0

    def ask_scores(self, public: PublicKey, scores: ScalarCiphertexts, active: Sequence[str]) -> bytes:  # noqa: ARG002
        """The ciphertexts as they are."""
        self._scores = scores
        return scores.to_bytes()

    def scores(self, job: WeighRound, plan: ScorePlan) -> Scores:
        """What the decryptor's numbers say."""
        from ofl_iot.crypto.scores import read_scores

        if self._scores is None:
            raise RoundError("the scores were not asked for")
        values = [int(value) for value in np.frombuffer(_whole(job.values, _SCORE), _SCORE)]
        return read_scores(self._scores, values, len(job.active), plan)

    def ask_model(
        self,
        public: PublicKey,  # noqa: ARG002
        total: EncryptedModel,
        active: Sequence[str],  # noqa: ARG002
        contributors: Sequence[DeviceId],  # noqa: ARG002
    ) -> bytes:
        """The ciphertext as it is."""
        self._size = total.n_params
        return total.to_bytes()

    def model(self, job: FinishRound) -> Vector:
        """The decryptor's numbers."""
        values = np.frombuffer(_whole(job.values, _PARAMETER), _PARAMETER).astype(np.float32)
        if len(values) != self._size:
            raise CryptoError(f"the decryptor returned {len(values)} parameters, not {self._size}")
        return values


class DecryptorCrypto:
    """The decryptor's jobs; between them it keeps nothing in memory."""

    def __init__(self, federation: FederationId, entropy: Entropy) -> None:
        self._federation = federation
        self._entropy = entropy

    def server_decrypt(self, job: ServerDecrypt) -> ServerDecrypted:
        """ServerDec of scores or of a model, for this active set."""
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.encryption import EncryptedModel
        from ofl_iot.crypto.scalars import ScalarCiphertexts, server_scalars
        from ofl_iot.crypto.threshold import server_decrypt

        ask = job.ask
        context = context_of(self._federation, ask.opened)
        public = public_of(context, ask.public)
        origin = Origin(context, ask.round_no, COORDINATOR)
        contributors = _ids(ask.contributors)
        for contributor in contributors:
            context.point_of(contributor)
        if len(set(contributors)) < FEWEST_CONTRIBUTORS:
            raise CryptoError(
                f"a ciphertext of {len(set(contributors))} contributors, at least {FEWEST_CONTRIBUTORS} are needed"
            )
        if ask.stage == SCORES:
            scores = ScalarCiphertexts.from_bytes(ask.ciphertext, origin)
            kept, asked = server_scalars(public, scores, _ids(job.active), self._entropy, server=DECRYPTOR)
            held, request = kept.to_bytes(), asked.to_bytes()
        else:
            total = EncryptedModel.from_bytes(ask.ciphertext, origin)
            half, question = server_decrypt(
                public, total, _ids(job.active), contributors, self._entropy, server=DECRYPTOR
            )
            held, request = half.to_bytes(), question.to_bytes()
        return ServerDecrypted(encode_body(PartDecAsk(digest_of(ask.public), request)), held)

    def final_decrypt(self, job: FinalDecrypt) -> FinalDecrypted:
        """FinDec of the shares."""
        from ofl_iot.crypto.context import Origin
        from ofl_iot.crypto.scalars import HeldScalars
        from ofl_iot.crypto.threshold import HeldDecryption

        origin = Origin(context_of(self._federation, job.ask.opened), job.ask.round_no, DECRYPTOR)
        if job.ask.stage == SCORES:
            scores = decrypt_scores_of(HeldScalars.from_bytes(job.held, origin), job.shares)
            return FinalDecrypted(np.array(scores, _SCORE).tobytes())
        model = _decrypt_model(HeldDecryption.from_bytes(job.held, origin), job.shares)
        return FinalDecrypted(model.astype(_PARAMETER).tobytes())


def decrypt_scores_of(held: HeldScalars, shares: Mapping[str, bytes]) -> list[int]:
    """FinDec of scores from the leaders' bytes; CulpritError names whose are no answer to the request."""
    from ofl_iot.crypto.context import Origin
    from ofl_iot.crypto.scalars import ScalarShare
    from ofl_iot.crypto.scores import decrypt_scores

    def read(leader: DeviceId, data: bytes) -> ScalarShare:
        share = ScalarShare.from_bytes(data, Origin(held.origin.context, held.origin.round_no, leader))
        _check_answer(share.request_id, held.request_id, fits=len(share.values) == len(held.queries))
        return share

    return decrypt_scores(held, list(each_of(shares, read).values()))


def _decrypt_model(held: HeldDecryption, shares: Mapping[str, bytes]) -> Vector:
    from ofl_iot.crypto.context import Origin
    from ofl_iot.crypto.threshold import DecryptionShare, final_decrypt

    def read(leader: DeviceId, data: bytes) -> DecryptionShare:
        share = DecryptionShare.from_bytes(data, Origin(held.origin.context, held.origin.round_no, leader))
        _check_answer(share.request_id, held.request_id, fits=share.values.shape == held.c0.shape)
        return share

    return final_decrypt(held, list(each_of(shares, read).values())).astype(np.float32)


def _check_answer(request_id: bytes, asked: bytes, *, fits: bool) -> None:
    if request_id != asked:
        raise CryptoError("a share that answers another request (replayed, or of another round)")
    if not fits:
        raise CryptoError("a share of another size than asked for")


def _whole(values: bytes, dtype: np.dtype) -> bytes:
    if len(values) % dtype.itemsize:
        raise CryptoError("the decryptor returned a part of a number")
    return values


def _ids(names: Sequence[str]) -> tuple[DeviceId, ...]:
    return tuple(DeviceId(name) for name in names)
