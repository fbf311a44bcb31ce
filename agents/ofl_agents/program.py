"""Runs one party as a process: link, store, executor, signals, and an end in good order."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ofl_agents.cli import add_settings_options, environment, overrides_of
from ofl_iot import __version__
from ofl_iot.apps.builtin import BUILT_IN, OWN, SUGGESTED
from ofl_iot.errors import ConfigError, StoreError
from ofl_iot.ids import DeviceId, federation_id
from ofl_iot.jobs.prepared_kernels import prepared_folder, take_prepared
from ofl_iot.jobs.toolbox import Pace, Toolbox
from ofl_iot.local.address import socket_path
from ofl_iot.local.server import LocalServer
from ofl_iot.models.named import AppPlace
from ofl_iot.models.stored import description_ops, encode_app
from ofl_iot.protocol.model_card import ModelCard, encode_card
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.base import Machine
from ofl_iot.roles.events import Event
from ofl_iot.roles.reports.base import Report
from ofl_iot.roles.storage import StoreOp
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.desk import PartyDesk
from ofl_iot.runtime.live import Equipment, LiveParty
from ofl_iot.runtime.logs import set_format
from ofl_iot.runtime.model_watch import Deliver, ModelWatch
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import Loaded, load_settings
from ofl_iot.runtime.store import SqliteStore
from ofl_iot.runtime.telemetry import TelemetrySource
from ofl_iot.runtime.watchdog import Notifier, Service
from ofl_iot.transport.identity import IdentityFolder
from ofl_iot.transport.mqtt import MqttLink, Will

if TYPE_CHECKING:
    from ofl_iot.identity.enrolment import Enrolment

log = logging.getLogger(__name__)

UNWATCHED = Service(Notifier(None))
"""For a party inside another program, whose service manager is that program's business."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every long-running party takes."""
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="where the store is kept (default: $STATE_DIRECTORY or ./ofl-state)"
    )
    add_settings_options(parser)


def load_for_app(files: list[Path], given: dict[str, str], *, own: bool = False) -> Loaded[Settings]:
    """Load settings; what nobody set is as the app that they name suggests, or as suits an app of one's `own`."""
    loaded = load_settings(Settings, files, environment(), given)
    missing = suggested(loaded, own=own)
    if not missing:
        return loaded
    return Loaded(load_settings(Settings, files, environment(), {**given, **missing}).settings, loaded.origin)


def suggested(loaded: Loaded[Settings], *, own: bool) -> dict[str, str]:
    """Return what suits the app where nothing was set; an app of one's `own` is planned where `privacy.auto` is set."""
    app = loaded.settings.federation.app
    suits = SUGGESTED.get(app, {})
    if own or app not in BUILT_IN:
        suits = OWN if loaded.settings.privacy.auto and loaded.settings.privacy.mode == "rigorous" else {}
    if "privacy.auto" in suits and loaded.settings.round.count:
        suits = {**suits, "privacy.lifetime": f"{loaded.settings.round.count} rounds"}
    return {key: value for key, value in suits.items() if loaded.origin[key] == "default"}


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the effective settings of a program; from here on it logs as they say."""
    settings = load_for_app(options.config, overrides_of(options)).settings
    set_format(settings.log.format)
    return settings


def state_path(options: argparse.Namespace) -> Path:
    """The folder of the store, whether it is there or not."""
    folder: Path = options.state or Path(os.environ.get("STATE_DIRECTORY", "ofl-state"))
    return folder


def state_folder(options: argparse.Namespace) -> Path:
    """The folder of the store, made if need be."""
    folder = state_path(options)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"cannot make the state folder {folder}: {error.strerror}; choose one with --state"
        ) from error
    return folder


@dataclass(frozen=True)
class PartyProcess:
    """What one process runs."""

    name: DeviceId
    make: Callable[[], Machine]
    toolbox: Toolbox
    settings: Settings
    state: Path
    will: tuple[str, bytes] | None = None
    meter: TelemetrySource | None = None
    pace: Pace | None = None
    finished: Callable[[Machine], bool] = lambda _: False
    """Whether the machine has nothing left to do."""
    identity: IdentityFolder | None = None
    enrolled: Callable[[Enrolment], Event | None] = lambda _: None
    """What the machine is told of its enrolment, at the start and when the certificate was renewed."""
    card: ModelCard | None = None
    """Names and shapes of the model's tensors, and where its app is: stored, so that an export knows them."""
    app: AppPlace | None = None
    remember: tuple[StoreOp, ...] = ()
    """What else is stored before the machine starts."""
    deliver: Deliver | None = None
    """Takes each new model, at most one every `service.model_out_s` seconds."""


def run_party(process: PartyProcess) -> None:
    """Run until SIGTERM or SIGINT, or until the machine has `finished`."""
    asyncio.run(_run(process))


async def _run(process: PartyProcess) -> None:
    loop = asyncio.get_running_loop()

    def started(party: LiveParty, _desk: PartyDesk) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, party.stop)

    await serve(process, started, Service.of(os.environ))


async def serve(
    process: PartyProcess, started: Callable[[LiveParty, PartyDesk], None], service: Service = UNWATCHED
) -> None:
    """Run a party in this loop until it is stopped or has `finished`; `started` is called before its first event."""
    watch = ModelWatch(process.deliver, process.settings.service.model_out_s) if process.deliver else None
    with (
        ThreadPoolExecutor(max_workers=2, thread_name_prefix="ofl-job") as executor,
        ThreadPoolExecutor(max_workers=1, thread_name_prefix="ofl-store") as store_executor,
    ):
        equipment = _equip(process, executor, store_executor, watch.listen if watch else None)
        party = LiveParty(process.name, process.make, equipment)
        desk = _desk_of(process, party)
        local = LocalServer(socket_path(process.state, process.name), desk.answer)
        await local.start()
        caring = [task for task in (_look_after(process, party), _hand_on(watch, desk)) if task]
        started(party, desk)
        running = asyncio.create_task(party.run(), name=process.name)
        reporting = asyncio.create_task(service.attend(party), name="service")
        while not running.done() and not party.stopping and not process.finished(party.machine):
            await asyncio.wait({running}, timeout=0.5)
        for task in (reporting, *caring):
            task.cancel()
        await asyncio.gather(*caring, return_exceptions=True)
        service.stopping()
        party.stop()
        await local.close()
        await running
        if watch:
            await watch.flush(desk)


def _equip(
    process: PartyProcess,
    executor: ThreadPoolExecutor,
    store_executor: ThreadPoolExecutor,
    listener: Callable[[str, Report, float], None] | None,
) -> Equipment:
    take_prepared(prepared_folder())
    wire = Wire(federation_id(process.settings.federation.id))
    echo = wire.topics.build(Topic(Kind.ECHO, process.name))
    store = SqliteStore(process.state / f"{process.name}.sqlite")
    _describe(process, store)
    return Equipment(
        link=MqttLink(
            process.settings.mqtt,
            process.name,
            Will(*process.will) if process.will else None,
            federation=process.settings.federation.id,
            echo_topic=echo,
        ),
        store=store,
        toolbox=process.toolbox,
        wire=wire,
        executor=executor,
        store_executor=store_executor,
        meter=process.meter,
        pace=process.pace,
        listener=listener,
        job_limit_s=process.settings.service.job_limit_s,
    )


def _describe(process: PartyProcess, store: SqliteStore) -> None:
    """Store what the model is; a party whose disk is full goes on without."""
    try:
        store.apply([*description_ops(process.card, process.app), *process.remember])
    except StoreError as error:
        log.warning("the model's card was not stored party=%s reason=%s", process.name, error)


def _desk_of(process: PartyProcess, party: LiveParty) -> PartyDesk:
    card = encode_card(process.card) if process.card else b""
    return PartyDesk(party, __version__, card, encode_app(process.app))


def _hand_on(watch: ModelWatch | None, desk: PartyDesk) -> asyncio.Task[None] | None:
    """Hand new models on while the party runs."""
    return asyncio.create_task(watch.attend(desk), name="models") if watch else None


def _look_after(process: PartyProcess, party: LiveParty) -> asyncio.Task[None] | None:
    """Tell the machine of its enrolment before it has a link, and keep that enrolment good; None without one."""
    held = process.identity
    if held is None:
        return None
    from ofl_agents.enrolment.renewal import Renewal

    def tell(enrolment: Enrolment) -> None:
        if (event := process.enrolled(enrolment)) is not None:
            party.inform(event)

    tell(held.load())
    return asyncio.create_task(Renewal(held, tell).attend(), name="identity")
