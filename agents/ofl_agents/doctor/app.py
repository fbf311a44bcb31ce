"""The app: whether it can be loaded, what its model is, what data it finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ofl_agents.app import open_app, secrets_of
from ofl_agents.doctor.findings import Finding, error, ok, skipped, warning
from ofl_iot.apps.builtin import BUILT_IN
from ofl_iot.apps.opening import OpenedApp
from ofl_iot.errors import OflError
from ofl_iot.ids import COORDINATOR, DECRYPTOR
from ofl_iot.runtime.settings import Settings

_NAMED = 3


def app(settings: Settings, state: Path, name: str | None) -> Iterator[Finding]:
    """Load the app as the party would, and look at its data."""
    if name == DECRYPTOR:
        yield skipped("app", "a decryptor has none")
        return
    if settings.federation.app in BUILT_IN:
        yield ok("app", f"{settings.federation.app}, which is built in")
        return
    opened = open_app(settings, secrets_of(settings, state))
    try:
        yield from _examine(opened, settings, name)
    except OflError as problem:
        yield error("app", str(problem), "mend the app, or name another with --app or federation.app")
    finally:
        opened.close()


def _examine(opened: OpenedApp, settings: Settings, name: str | None) -> Iterator[Finding]:
    described = opened.describe()
    yield ok("app", f"{described.card.app} with {described.card.size:,} parameters that travel")
    if name == COORDINATOR and not described.judged:
        yield ok("data", "none are held out: models are not judged")
        return
    look = opened.look(held_out=name == COORDINATOR)
    where = settings.federation.data or "no --data"
    if not look.count:
        yield warning(
            "data", f"no records yet ({where})", "they are used as soon as there are some; check federation.data"
        )
    else:
        yield ok("data", f"{look.count:,} records ({where})")
    if look.set_aside:
        some = [f"{what}: {why}" for what, why in list(look.set_aside.items())[:_NAMED]]
        more = f", and {len(look.set_aside) - _NAMED} more" if len(look.set_aside) > _NAMED else ""
        yield warning("data", f"set aside: {'; '.join(some)}{more}", "mend or remove them; the others are used")
