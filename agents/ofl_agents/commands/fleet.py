"""`ofl fleet`: an operator's orders to devices, signed with the operator's certificate, and tokens for many devices."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from pathlib import Path

from ofl_agents.cli import add_settings_options
from ofl_agents.enrolment.authority import Authority
from ofl_agents.observing import positive_seconds
from ofl_agents.program import settings_of
from ofl_iot.errors import ConfigError, TransportError
from ofl_iot.fleet_view.view import FleetView
from ofl_iot.identity.certificates import DAY_S
from ofl_iot.identity.enrolment import Enrolment
from ofl_iot.ids import OPERATOR, DeviceId, device_id, federation_id
from ofl_iot.jobs.operator_orders import signed
from ofl_iot.protocol.fleet_orders import Action, Order
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.fleet_watch import FleetWatch, watch_fleet
from ofl_iot.runtime.settings import Settings
from ofl_iot.transport.identity import IdentityFolder

MAX_TOKENS = 10_000
NOT_YET = 1
"""Exit code when a device did not obey in time."""
_ORDERS: dict[Action, str] = {
    "pause": "stop training; it goes on serving and sends what is finished",
    "resume": "train again",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """One parser for each action."""
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    for action, meaning in _ORDERS.items():
        sub = actions.add_parser(action, help=f"order devices to {meaning}", description=f"Order devices to {meaning}.")
        sub.add_argument("devices", nargs="+", metavar="DEVICE")
        sub.add_argument(
            "--timeout", type=positive_seconds, default=90.0, metavar="S",
            help="seconds to wait until they say that they obeyed (default: %(default)g)",
        )  # fmt: skip
        add_settings_options(sub)
        sub.epilog = "Exit code: 0 all obeyed, 1 some have not said so yet: the order waits at the broker for them."
    token = actions.add_parser("token", help="make one-time join tokens for many devices, one a line")
    token.add_argument("--ca", type=Path, required=True, metavar="DIR", help="the authority's folder")
    token.add_argument("--count", type=int, required=True, metavar="N", help="how many")
    token.add_argument("--valid-min", type=positive_seconds, default=7 * 1440.0, metavar="M", help="(default: a week)")
    token.add_argument("--days", type=positive_seconds, metavar="D", help="the certificates' lifetime (default: 30)")


def run(options: argparse.Namespace) -> int:
    """Do what was asked."""
    if options.action == "token":
        return _tokens(options)
    names = [device_id(name) for name in dict.fromkeys(options.devices)]
    settings = settings_of(options)
    return asyncio.run(_order(settings, _operator(settings), options.action, names, options.timeout))


def _tokens(options: argparse.Namespace) -> int:
    if not 1 <= options.count <= MAX_TOKENS:
        raise ConfigError(f"--count {options.count}: choose 1 to {MAX_TOKENS}")
    authority = Authority(options.ca)
    lifetime_s = options.days * DAY_S if options.days is not None else None
    with contextlib.closing(authority):
        for _ in range(options.count):
            token = authority.make_token(None, time.time(), options.valid_min * 60.0, lifetime_s=lifetime_s)
            sys.stdout.write(token.text() + "\n")
    return 0


def _operator(settings: Settings) -> Enrolment:
    if settings.mqtt.identity is None:
        raise ConfigError(
            "orders are signed: name the folder of an identity enrolled as 'operator' with mqtt.identity "
            "(`ofl enroll token --id operator`, then `ofl enroll join`)"
        )
    operator = IdentityFolder(Path(settings.mqtt.identity)).load()
    if operator.name != OPERATOR:
        raise ConfigError(f"mqtt.identity names {operator.name!r}, which may give no orders: use one named 'operator'")
    return operator


async def _order(
    settings: Settings, operator: Enrolment, action: Action, names: list[DeviceId], timeout_s: float
) -> int:
    wire = Wire(federation_id(settings.federation.id))
    until = time.monotonic() + timeout_s
    async with watch_fleet(settings, name=OPERATOR) as watch:
        _check_known(await watch.settled(timeout_s), names)
        for name in names:
            now = time.time()
            order = Order(wire.topics.federation, name, int(now * 1000), now, action)
            if not watch.order(signed(order, operator), wire):
                raise TransportError(f"the broker did not take the order to {name}: try again")
        waiting = await _obeyed(watch, action, set(names), until)
    for name in names:
        said = "has not said yet that it obeyed: the order waits for it" if name in waiting else f"obeyed: {action}"
        sys.stdout.write(f"{name}: {said}\n")
    return NOT_YET if waiting else 0


def _check_known(view: FleetView, names: list[DeviceId]) -> None:
    unknown = [name for name in names if view.device(name) is None]
    if unknown:
        raise ConfigError(f"no device is called {', '.join(unknown)}: `ofl status` knows {len(view.devices)} devices")


async def _obeyed(watch: FleetWatch, action: Action, names: set[DeviceId], until: float) -> set[DeviceId]:
    """Wait until the devices say that they obeyed; return those that did not in time."""
    while True:
        view = watch.view()
        found = {name: view.device(name) for name in names}
        waiting = {
            name for name, each in found.items() if each is None or (each.state == "paused") != (action == "pause")
        }
        left = until - time.monotonic()
        if not waiting or left <= 0:
            return waiting
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(watch.changed(view.seq), min(left, 1.0))
