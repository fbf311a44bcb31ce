"""The app of a federation as settings name it."""

from __future__ import annotations

from pathlib import Path

from ofl_iot.apps.builtin import BUILT_IN, Dealing
from ofl_iot.apps.opening import AppChoice, OpenedApp
from ofl_iot.apps.process import Limits
from ofl_iot.apps.runner import Runner
from ofl_iot.models.named import AppPlace
from ofl_iot.runtime.settings import Settings


def open_app(settings: Settings, hidden: tuple[Path, ...] = (), here: Runner | None = None) -> OpenedApp:
    """Return the app of the settings; what is `hidden` its code cannot reach where the kernel helps.

    `here` is an app that a program runs in its own process, in place of the one that the settings name.
    """
    federation, simulation, service = settings.federation, settings.simulation, settings.service
    return OpenedApp(
        AppChoice(
            app=federation.app,
            data=federation.data,
            private=settings.privacy.mode == "rigorous",
            dealing=Dealing(simulation.seed, simulation.alpha),
            limits=Limits(
                quiet_s=service.app_quiet_s,
                idle_s=service.app_idle_s,
                memory_mib=service.app_memory_mib,
                engine=settings.training.engine,
                device=settings.training.device,
            ),
            hidden=hidden,
        ),
        here,
    )


def secrets_of(settings: Settings, state: Path) -> tuple[Path, ...]:
    """Return the files of a party that its app has no business with."""
    identity = settings.mqtt.identity
    return (state, Path(identity)) if identity else (state,)


def place_of(settings: Settings, *, held_out: bool = False) -> AppPlace | None:
    """Return where the app and its data are, for whoever exports the model later; None for a built-in app."""
    federation = settings.federation
    if federation.app in BUILT_IN:
        return None
    return AppPlace(app=federation.app, data=federation.data, held_out=held_out, folder=str(Path.cwd()))
