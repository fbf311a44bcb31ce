"""Builds the parties of a federation from settings: the same for simulated and for real ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ofl_iot import __version__
from ofl_iot.apps.workload import AppWorkload
from ofl_iot.crypto.entropy import Entropy, SeededEntropy, SystemEntropy
from ofl_iot.errors import ConfigError
from ofl_iot.fleet.assignment import FleetSettings
from ofl_iot.fleet.clustering import ClusteringSettings
from ofl_iot.ids import COORDINATOR, DECRYPTOR, DeviceId, FederationId, federation_id
from ofl_iot.jobs.coordinator_crypto import CoordinatorCrypto
from ofl_iot.jobs.decrypt import DecryptorCrypto
from ofl_iot.jobs.leader_crypto import LeaderCrypto
from ofl_iot.jobs.ledger import open_ledger, open_ledger_apart
from ofl_iot.jobs.toolbox import CoordinatorToolbox, DecryptorToolbox, DeviceToolbox
from ofl_iot.opportunity.plan import label_balance
from ofl_iot.protocol.codec import encode
from ofl_iot.protocol.model_card import ModelCard, TensorCard, encode_card
from ofl_iot.protocol.topics import Kind, Topic, Topics
from ofl_iot.roles.agent import AgentMachine
from ofl_iot.roles.coordinator.claim import CoordinatorClaim
from ofl_iot.roles.coordinator.machine import CoordinatorMachine
from ofl_iot.roles.coordinator.profile import CoordinatorRules, ModelProfile
from ofl_iot.roles.decryption.decryptor import DecryptorMachine
from ofl_iot.roles.device.machine import DeviceMachine
from ofl_iot.roles.device.profile import DeviceProfile
from ofl_iot.roles.keys.holder import KeyHolder
from ofl_iot.roles.leader.machine import LeaderMachine
from ofl_iot.roles.leader.merging import WeightedMerging
from ofl_iot.roles.leader.profile import LeaderProfile
from ofl_iot.roles.store_identity import StoreIdentity
from ofl_iot.runtime.settings import Settings
from ofl_iot.transport.identity import IdentityFolder
from ofl_iot.workloads.base import Vector, Workload, is_live

if TYPE_CHECKING:
    from ofl_iot.identity.enrolment import SealingTrust


@dataclass(frozen=True)
class AgentPlan:
    """One device: how to make its machine, what runs its jobs, its last will."""

    name: DeviceId
    make: Callable[[], AgentMachine]
    toolbox: DeviceToolbox
    will: tuple[str, bytes]


@dataclass(frozen=True)
class CoordinatorPlan:
    """The coordinator: how to make its machine and what runs its jobs."""

    make: Callable[[], CoordinatorMachine]
    toolbox: CoordinatorToolbox


@dataclass(frozen=True)
class DecryptorPlan:
    """The decryptor: how to make its machine and what runs its jobs."""

    make: Callable[[], DecryptorMachine]
    toolbox: DecryptorToolbox


class Parties:
    """Makes the parties of one federation.

    With `seed` their cryptography repeats itself too: for simulations in virtual time, which must, and nothing else.
    With `light` a device keeps the privacy accountant out of its process: for one that stays for long.
    """

    def __init__(self, settings: Settings, seed: int | None = None, *, light: bool = False) -> None:
        self.settings = settings
        self._open_ledger = open_ledger_apart if light else open_ledger
        self._seed = seed
        self.federation: FederationId = federation_id(settings.federation.id)

    def agent(
        self,
        name: DeviceId,
        workload: Workload,
        device_type: str,
        rng: np.random.Generator,
        identity: IdentityFolder | None = None,
        *,
        accept_new_budget: bool = False,
    ) -> AgentPlan:
        """A device with its data; an enrolled one seals to those alone whom the federation's authority vouches for.

        `accept_new_budget` is the operator's consent to a new privacy budget where the old one is lost or spent.
        """
        settings, live = self.settings, is_live(workload)
        profile = DeviceProfile(
            device=name,
            model=workload.digest,
            size=workload.size,
            block_size=settings.leader.block_size,
            sample_count=0 if live else workload.sample_count,
            live=live,
            card=encode_card(card_of(workload)),
            device_type=device_type,
            heartbeat_s=settings.fleet.heartbeat_s,
            accept_new_budget=accept_new_budget,
            software=__version__,
            edges=card_of(workload).bounds()[1:-1],
            balance=1.0 if live else label_balance(workload.label_histogram().tolist()),
        )

        salt, drawing = int(rng.integers(2**63)), self._entropy(name)

        def make() -> AgentMachine:
            store = StoreIdentity(drawing.random_bytes(8))
            device = DeviceMachine(profile, settings.device_rules(), store)
            encrypted = settings.protection.mode == "threshold"
            largest = settings.protection.largest_update
            leader_profile = LeaderProfile(name, workload.digest, device.model.layout, encrypted, largest)
            key_holder = KeyHolder(name, settings.protection.resend_s, settings.protection.server)
            noisy = settings.privacy.mode == "rigorous"
            planned = noisy and settings.privacy.auto
            merging = WeightedMerging(settings.merge, salt, settings.training.steps, noisy=noisy, planned=planned)
            return AgentMachine(
                device, LeaderMachine(leader_profile, settings.leader, merging, key_holder, store), key_holder
            )

        crypto = LeaderCrypto(self.federation, settings.protection, self._entropy(name), _trust_of(identity))
        rules, density = settings.device_rules(), settings.upload.density
        toolbox = DeviceToolbox(
            workload, rules, crypto, rng, density, open_ledger=self._open_ledger, tensors=card_of(workload).tensors
        )
        topic = Topics(self.federation).build(Topic(Kind.STATUS, name))
        return AgentPlan(name, make, toolbox, (topic, encode(make().device.status(online=False))))

    def coordinator(
        self,
        judge: Workload,
        *,
        take_over: bool = False,
        discard_model: bool = False,
        initial: Vector | None = None,
    ) -> CoordinatorPlan:
        """The coordinator with held-out data; `take_over` follows another one, `discard_model` without its model.

        `initial` are pre-trained values to begin with; None: untrained ones.
        """
        settings = self.settings
        start = judge.initial(settings.federation.seed) if initial is None else initial
        profile = ModelProfile(judge.digest, start, encode_card(card_of(judge)), __version__)
        most = settings.protection.most_leaders
        if most is not None and settings.fleet.clusters > most:
            raise ConfigError(
                f"fleet.clusters = {settings.fleet.clusters}: leaders of lean rounds can be {most} with this threshold "
                "(protection.threshold), because each score shows a little of their key; use fewer clusters"
            )
        bounds = ClusteringSettings(clusters=settings.fleet.clusters or None, most_clusters=most)
        fleet = FleetSettings(clustering=bounds)

        rules = CoordinatorRules(settings.round, settings.fleet, settings.protection, fleet, settings.training)
        crypto = CoordinatorCrypto(self.federation, settings.protection, self._entropy(COORDINATOR))

        new_incarnation = self._entropy(COORDINATOR).random_bytes(8)

        def make() -> CoordinatorMachine:
            return CoordinatorMachine(
                profile, rules, CoordinatorClaim(new_incarnation, take_over=take_over, discard_model=discard_model)
            )

        return CoordinatorPlan(make, CoordinatorToolbox(judge, crypto, settings.protection))

    def decryptor(self) -> DecryptorPlan:
        """The party that performs ServerDec, where the settings want one."""
        protection = self.settings.protection
        crypto = DecryptorCrypto(self.federation, self._entropy(DECRYPTOR))
        return DecryptorPlan(lambda: DecryptorMachine(protection), DecryptorToolbox(crypto))

    def _entropy(self, name: DeviceId) -> Entropy:
        if self._seed is None:
            return SystemEntropy()
        return SeededEntropy(zlib.crc32(name.encode(), self._seed & 0xFFFFFFFF) + (self._seed << 32))


def _trust_of(identity: IdentityFolder | None) -> SealingTrust | None:
    """How an enrolled device judges the sealing keys of others."""
    if identity is None:
        return None
    from ofl_iot.identity.enrolment import SealingTrust

    return SealingTrust(identity.load, identity.clock)


def card_of(workload: Workload) -> ModelCard:
    """Return the card of an app's model; that of a built-in network says no more than its digest does."""
    if isinstance(workload, AppWorkload):
        return workload.card
    whole = (TensorCard("parameters", (workload.size,)),)
    return ModelCard(app=workload.name, tensors=whole, loss="built in", version=workload.digest.hex())
