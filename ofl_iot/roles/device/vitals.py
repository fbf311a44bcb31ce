"""What a device says of itself for an observer: how it fares, and what keeps it from training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ofl_iot.protocol.fleet_notes import Vitals

if TYPE_CHECKING:
    from ofl_iot.roles.device.machine import DeviceMachine

SPENT, LEDGER_LOST, NO_DATA, USER_CODE, OUTBOX = "spent", "ledger-lost", "no-data", "user-code", "outbox"
MAX_WORD = 40


def held_back_by(device: DeviceMachine) -> str:
    """Return what keeps the device from training, as a stable code; empty if nothing does."""
    if device.guard.refusal:
        return LEDGER_LOST
    if device.guard.exhausted:
        return SPENT
    if device.throttle.paused:
        return device.throttle.reason
    if device.failure:
        return USER_CODE
    if device.data.waiting:
        return NO_DATA
    return OUTBOX if device.outbox.full else ""


def error_class(reason: str) -> str:
    """Return the name of the exception class in front of a failure's text; the text stays on the device."""
    name = reason.partition(":")[0].strip()
    return name[:MAX_WORD] if name.isidentifier() else "Exception"


def vitals_of(device: DeviceMachine) -> Vitals:
    """Return how the device fares now."""
    plan, measured, outbox = device.contact_plan, device.telemetry, device.outbox
    return Vitals(
        version=device.profile.software[:MAX_WORD],
        outbox_chunks=len(outbox.unsettled),
        outbox_bytes=outbox.held_bytes,
        outbox_limit_bytes=outbox.max_bytes,
        sent_chunks=outbox.next_seq - 1,
        gamma_up=min(1.0, max(0.0, plan.gamma_up)),
        gamma_down=min(1.0, max(0.0, plan.gamma_down)),
        binding=plan.binding[:MAX_WORD],
        budget_left=min(1.0, max(0.0, device.guard.left)),
        round_no=device.model.round_no,
        held_back=held_back_by(device),
        error=error_class(device.failure) if device.failure else "",
        failures=device.failures,
        network_mbps=measured.network_mbps if measured else None,
        round_trip_s=measured.round_trip_s if measured else None,
        availability=measured.availability if measured else 1.0,
        temperature_c=measured.temperature_c if measured else None,
        max_temperature_c=min(200.0, device.max_temperature_c),
        battery=measured.battery if measured else None,
        power_w=measured.power_w if measured else None,
        cpu_load=measured.cpu_load if measured else None,
        memory_free_mib=measured.memory_free_mib if measured else None,
        step_s=measured.step_s if measured else None,
    )
