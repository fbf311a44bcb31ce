"""Puts the view together from what the observer remembers; nothing is decided elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from msgspec.structs import replace

from ofl_iot.fleet_view.reasons import RECENT_ROUNDS, Surroundings, judge
from ofl_iot.fleet_view.records import ClusterRecord, DeviceRecord, Memory
from ofl_iot.fleet_view.view import (
    BrokerView,
    Chunks,
    ClusterView,
    CoordinatorView,
    DeviceView,
    Elected,
    Federation,
    FleetView,
    Link,
    Model,
    ObserverView,
    Outbox,
    Plan,
    Protection,
    Resources,
    RoundView,
    Traffic,
)


@dataclass(frozen=True)
class Context:
    """What is remembered, with what is looked up again and again."""

    memory: Memory
    rounds: Mapping[int, RoundView]

    @cached_property
    def cluster_of(self) -> dict[str, ClusterRecord]:
        """The cluster of each device; while notes of a new clustering arrive, the one of the highest term."""
        by_term = sorted(self.memory.clusters.values(), key=lambda each: each.term)
        return {name: each for each in by_term for name in (each.leader, *each.members)}

    @cached_property
    def closed(self) -> tuple[RoundView, ...]:
        """The last closed rounds, newest first."""
        numbers = sorted((number for number, each in self.rounds.items() if each.state == "closed"), reverse=True)
        return tuple(self.rounds[number] for number in numbers[:RECENT_ROUNDS])

    def around(self, name: str) -> Surroundings:
        """Return what a device's reason depends on."""
        memory, cluster = self.memory, self.cluster_of.get(name)
        leader = memory.devices.get(cluster.leader) if cluster else None
        return Surroundings(
            memory.model, memory.size, memory.workload, memory.coordinator_s, cluster, leader, self.closed
        )


def device_view(record: DeviceRecord, context: Context) -> DeviceView:
    """Return one device as the view shows it."""
    cluster, vitals = context.cluster_of.get(record.id), record.vitals
    state, why = judge(record, context.around(record.id))
    last = context.closed[0].round_no if context.closed else None
    known = DeviceView(
        id=record.id,
        state=state,
        why=why,
        type=record.type or None,
        cluster=cluster.letter if cluster else None,
        leader=cluster.leader if cluster else None,
        role=_role(record.id, cluster),
        online=record.online,
        since_s=record.since_s,
        last_seen_s=record.seen_s,
        last_upload_s=record.uploaded_s,
        paused_by=why.values["by"] if why.code == "paused" and isinstance(why.values["by"], str) else None,
        samples=record.samples,
        version=record.version or None,
        model=record.model[:8] or None,
    )
    refused = sum(each.dropped for each in record.refusals.values())
    if vitals is None:
        return replace(known, chunks=Chunks(refused=refused))
    return replace(
        known,
        link=Link(mbps=vitals.network_mbps, round_trip_s=vitals.round_trip_s, availability=vitals.availability),
        staleness_rounds=max(0, last - vitals.round_no) if last is not None else None,
        budget_left=vitals.budget_left,
        plan=Plan(gamma_up=vitals.gamma_up, gamma_down=vitals.gamma_down, binding=vitals.binding or None),
        outbox=Outbox(chunks=vitals.outbox_chunks, bytes=vitals.outbox_bytes, limit_bytes=vitals.outbox_limit_bytes),
        chunks=Chunks(sent=vitals.sent_chunks, refused=refused),
        bytes=Traffic(up=vitals.bytes_up or None, down=vitals.bytes_down or None),
        settings_revision=vitals.settings_revision or None,
        telemetry=Resources(
            cpu_load=vitals.cpu_load,
            memory_free_mib=vitals.memory_free_mib,
            temperature_c=vitals.temperature_c,
            battery=vitals.battery,
            power_w=vitals.power_w,
            step_s=vitals.step_s,
        ),
    )


def fleet_view(
    federation: str, context: Context, devices: tuple[DeviceView, ...], observer: ObserverView, broker: BrokerView
) -> FleetView:
    """Return the whole view but for alerts and events."""
    memory = context.memory
    rounds = tuple(context.rounds[number] for number in sorted(context.rounds))
    return FleetView(
        seq=0,
        now_s=0.0,
        federation=_federation(federation, memory, context),
        observer=observer,
        coordinator=CoordinatorView(version=memory.version or None, last_seen_s=memory.coordinator_s),
        broker=broker,
        devices=devices,
        clusters=tuple(_cluster(memory.clusters[letter], devices, context) for letter in sorted(memory.clusters)),
        rounds=rounds,
    )


def _role(name: str, cluster: ClusterRecord | None) -> Literal["leader", "deputy", "member"] | None:
    if cluster is None:
        return None
    return "leader" if name == cluster.leader else "deputy" if name in cluster.deputies else "member"


def _federation(name: str, memory: Memory, context: Context) -> Federation:
    last = context.closed[0] if context.closed else None
    states: dict[bool | None, Literal["on", "off"] | None] = {None: None, True: "on", False: "off"}
    return Federation(
        id=name,
        workload=memory.workload or None,
        model=Model(name=memory.workload or None, digest=memory.model[:8] or None, parameters=memory.size or None),
        protection=Protection(
            state=states[memory.encrypted],
            since_s=memory.protection_since_s,
            key_term=last.key_term if last else None,
            threshold=last.threshold if last else None,
            leaders=(len(last.decryption_set) + len(last.not_answered) or None) if last else None,
        ),
        settings_revision=memory.settings_revision or None,
        version=memory.version or None,
    )


def _cluster(record: ClusterRecord, devices: tuple[DeviceView, ...], context: Context) -> ClusterView:
    members = [each for each in devices if each.cluster == record.letter]
    leader = next((each for each in members if each.id == record.leader), None)
    last = context.closed[0] if context.closed else None
    part = next((each for each in last.contributions if each.leader == record.leader), None) if last else None
    counted = [each.samples for each in members if each.samples is not None]
    return ClusterView(
        id=record.letter,
        leader=record.leader,
        term=record.term,
        since_s=record.since_s,
        deputies=record.deputies,
        members=len(members),
        online=sum(each.online for each in members),
        samples=sum(counted) if counted else None,
        state="merging" if leader is not None and leader.online else "without-leader",
        handovers_1h=len(record.handovers),
        elected=Elected(reason=record.reason or None),
        weight=part.weight if part else None,
        evidence=part.evidence if part else None,
        previous=record.previous or None,
    )
