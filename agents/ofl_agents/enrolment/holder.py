"""Whose identity a program uses. Light: what certificates need is loaded only when there is one."""

from __future__ import annotations

from pathlib import Path

from ofl_iot.errors import ConfigError
from ofl_iot.ids import DeviceId
from ofl_iot.runtime.settings import Settings
from ofl_iot.transport.identity import IdentityFolder


def identity_of(settings: Settings, name: DeviceId) -> IdentityFolder | None:
    """The folder that `mqtt.identity` names, if it is this party's in this federation; ConfigError otherwise."""
    if settings.mqtt.identity is None:
        return None
    held = IdentityFolder(Path(settings.mqtt.identity))
    bearer = held.load().credential.bearer
    if bearer.name != name:
        raise ConfigError(f"the identity in {held.path} is of {bearer.name}, not of {name}: name that one's own folder")
    if bearer.federation != settings.federation.id:
        raise ConfigError(
            f"the identity in {held.path} is of the federation {bearer.federation}, and federation.id is "
            f"{settings.federation.id}: correct one of them"
        )
    return held
