"""Keys made once by the leaders' own protocol, for all tests of the folder."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from ofl_iot.crypto import keygen, relinearisation
from ofl_iot.crypto.context import KeyContext, Origin
from ofl_iot.crypto.encryption import EncryptedModel, PublicKey, encrypt
from ofl_iot.crypto.entropy import SeededEntropy
from ofl_iot.crypto.keygen import KeyShare, LeaderSecret
from ofl_iot.crypto.params import MAIN, ParameterSet
from ofl_iot.crypto.relinearisation import RelinKey
from ofl_iot.ids import DeviceId, FederationId, Term

LEADERS = tuple(DeviceId(f"truck-{number}") for number in range(5))


@dataclass(frozen=True)
class Term3:
    """Everything a term's leaders hold after key generation: 3 of 5 decrypt."""

    context: KeyContext
    secrets: dict[DeviceId, LeaderSecret]
    public: PublicKey
    shares: dict[DeviceId, KeyShare]
    relin: RelinKey

    @property
    def leaders(self) -> tuple[DeviceId, ...]:
        return self.context.members

    def origin(self, sender: str, round_no: int = 7) -> Origin:
        return Origin(self.context, round_no, DeviceId(sender))

    def models(self, values: np.ndarray, entropy: SeededEntropy) -> list[EncryptedModel]:
        """One encrypted model for each row of `values`, from the first leaders on."""
        return [
            encrypt(self.public, row, self.origin(name), entropy)
            for name, row in zip(self.leaders, values, strict=False)
        ]


def make_term(params: ParameterSet, threshold: int = 3, seed: int = 1, attempt: int = 0) -> Term3:
    entropy = SeededEntropy(seed)
    context = KeyContext(params, FederationId("harbour"), Term(3), LEADERS, threshold, attempt)
    secrets = {name: keygen.generate_secret(context, name, entropy) for name in LEADERS}
    public = keygen.combine_shares(context, [keygen.generate_share(s, entropy) for s in secrets.values()])
    deals = [keygen.generate_deals(secret, entropy) for secret in secrets.values()]
    shares = {name: keygen.combine_deals(context, name, [dealt[name] for dealt in deals]) for name in LEADERS}
    first = relinearisation.combine_shares(
        context, [relinearisation.generate_share(secret, entropy) for secret in secrets.values()]
    )
    completions = [relinearisation.complete_share(secret, first, entropy) for secret in secrets.values()]
    return Term3(context, secrets, public, shares, relinearisation.combine_completions(first, completions))


@pytest.fixture(scope="session")
def term() -> Term3:
    """The main parameter set, 3 of 5."""
    return make_term(MAIN)


@pytest.fixture(scope="session")
def other_term() -> Term3:
    """The same leaders and term, but key generation had to start again."""
    return make_term(MAIN, seed=2, attempt=1)


@pytest.fixture
def entropy() -> SeededEntropy:
    return SeededEntropy(11)


@pytest.fixture
def origin(term: Term3) -> Origin:
    """Round 7 of the first leader."""
    return replace(term.origin("truck-0"))
