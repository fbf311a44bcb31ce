"""`ofl_iot.Agent`: the agent of a device in a thread of the program that has its data."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ofl_agents import program
from ofl_agents.app import open_app
from ofl_agents.build import Parties, card_of
from ofl_agents.embedded.model import Model
from ofl_agents.enrolment.holder import identity_of
from ofl_agents.models.source import personal_in
from ofl_agents.program import suggested
from ofl_iot.apps.app import App
from ofl_iot.apps.served import Computing, ServedApp
from ofl_iot.apps.sources import Readings
from ofl_iot.errors import ConfigError, OflError, TransportError
from ofl_iot.ids import device_id
from ofl_iot.jobs.leader_crypto import sealing_key_of
from ofl_iot.local.messages import ModelReply, StatusReply, Which
from ofl_iot.models.stored import copy_of_reply
from ofl_iot.privacy.noise import noise_generator
from ofl_iot.runtime.desk import NoModelError, PartyDesk
from ofl_iot.runtime.live import LiveParty
from ofl_iot.runtime.settings import Settings
from ofl_iot.runtime.settings_file import load_settings
from ofl_iot.runtime.telemetry import best_source

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""How long the agent's loop may take to answer."""
STOP_S = 30.0
_T = TypeVar("_T")
OnModel = Callable[[Model], object]


class Agent:
    """A device's agent in a thread: `with Agent(app, id="truck-017", settings=…) as agent`.

    Without `data` it learns from what `add` gives it, with `data` from what the app's `samples(data)` returns. The
    app's code runs in this program. `settings` is a Settings, a TOML file, or a mapping such as
    {"mqtt.port": 1883}.
    """

    def __init__(
        self,
        app: App,
        *,
        id: str,  # noqa: A002  # the option's name on the command line
        settings: Settings | Mapping[str, object] | str | Path | None = None,
        state: str | Path = "ofl-state",
        data: str | None = None,
        device_type: str = "",
    ) -> None:
        self._name = device_id(id)
        self._settings = settings_from(settings)
        self._state = Path(state)
        self._readings: Readings | None = None
        if data is None:
            given = app.samples
            self._readings = given if isinstance(given, Readings) else Readings()
            app = dataclasses.replace(app, samples=self._readings)
        self._app, self._data, self._device_type = app, data or "", device_type
        self._callbacks = _Callbacks(self._model_of)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._party: LiveParty | None = None
        self._desk: PartyDesk | None = None
        self._failure: BaseException | None = None

    # --- life

    def start(self) -> Self:
        """Start the agent's thread; raises what keeps it from starting, such as a store in use."""
        if self._thread is not None:
            raise ConfigError(f"the agent {self._name} was started already: make another one")
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name=f"ofl-agent {self._name}", daemon=True)
        self._thread.start()
        started.wait()
        if self._desk is None and self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        """Leave in good order; raises what ended the agent, if something did."""
        if self._thread is None:
            return
        if self._loop is not None and self._party is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be over already
                self._loop.call_soon_threadsafe(self._party.stop)
        self._thread.join(STOP_S)
        self._callbacks.close()
        if self._thread.is_alive():
            raise TransportError(f"the agent {self._name} did not end within {STOP_S:g} s: a training may be under way")
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            with contextlib.suppress(OflError):  # the program's own error is the one to tell
                self.stop()

    # --- what the program does with it

    def add(self, inputs: Any, targets: Any = None) -> int:
        """Add records to learn from (one row each); return how many were taken."""
        if self._readings is None:
            raise ConfigError(
                f"the agent {self._name} reads its data from {self._data!r}: start it without data= to add"
            )
        return self._readings.add(inputs, targets)

    def model(self, which: Which = "federation") -> Model | None:
        """Return a copy of the newest complete model, or of the device's own; None while there is none."""
        try:
            answer = self._ask(lambda desk: desk.model(which))
        except NoModelError:
            return None
        assert isinstance(answer.reply, ModelReply)  # noqa: S101  # it was asked for
        return self._model_of(answer.reply, bytes(answer.body))

    def on_model(self, callback: OnModel) -> OnModel:
        """Call `callback(model)` in a thread of its own after each change; also usable as a decorator.

        The newest model only: one that takes long misses some. What it raises is logged once.
        """
        self._callbacks.add(callback)
        return callback

    def status(self) -> StatusReply:
        """Return how the agent fares."""
        return self._ask(lambda desk: desk.status())

    # --- inside

    def _run(self, started: threading.Event) -> None:
        try:
            asyncio.run(self._serve(started))
        except BaseException as error:  # noqa: BLE001  # handed over to the thread that started this one
            self._failure = error
        finally:
            started.set()

    async def _serve(self, started: threading.Event) -> None:
        self._state.mkdir(parents=True, exist_ok=True, mode=0o700)
        process = await asyncio.to_thread(self._process)

        def begun(party: LiveParty, desk: PartyDesk) -> None:
            self._loop, self._party, self._desk = asyncio.get_running_loop(), party, desk
            started.set()

        await program.serve(process, begun)

    def _process(self) -> program.PartyProcess:
        settings = self._settings
        runner = ServedApp(self._app, computing=Computing(settings.training.engine, settings.training.device))
        runner.open(0, self._data)
        workload = open_app(_with_data(settings, self._data), here=runner).device(self._name, state=self._state)
        identity = identity_of(settings, self._name)
        plan = Parties(settings, light=True).agent(self._name, workload, self._device_type, noise_generator(), identity)
        return program.PartyProcess(
            plan.name,
            plan.make,
            plan.toolbox,
            settings,
            self._state,
            will=plan.will,
            meter=best_source(self._device_type),
            identity=identity,
            enrolled=sealing_key_of,
            card=card_of(workload),
            deliver=self._callbacks.deliver,
        )

    def _model_of(self, reply: ModelReply, body: bytes) -> Model:
        return Model(copy_of_reply(reply, body), self._app, personal_in(self._state, self._name))

    def _ask(self, question: Callable[[PartyDesk], _T]) -> _T:
        """Ask in the agent's own loop: its machine belongs to it."""
        loop, desk = self._loop, self._desk
        if loop is None or desk is None or self._thread is None or not self._thread.is_alive():
            raise ConfigError(f"the agent {self._name} does not run: use it inside its `with`") from self._failure

        async def answer() -> _T:
            return question(desk)

        return asyncio.run_coroutine_threadsafe(answer(), loop).result(ANSWER_S)


class _Callbacks:
    """Runs callbacks in a thread of their own, each new model once, the newest only."""

    def __init__(self, make: Callable[[ModelReply, bytes], Model]) -> None:
        self._make = make
        self._callbacks: list[OnModel] = []
        self._waiting: queue.Queue[tuple[ModelReply, bytes] | None] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None
        self._complained: set[OnModel] = set()

    def add(self, callback: OnModel) -> None:
        """Call this one too."""
        self._callbacks.append(callback)

    async def deliver(self, reply: ModelReply, body: bytes) -> None:
        """Hand a model over without waiting for anybody."""
        if self._callbacks:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ofl-on-model", daemon=True)
                self._thread.start()
            self._put((reply, body))

    def close(self) -> None:
        """Let the thread end; one that hangs is not waited for."""
        self._put(None)

    def _put(self, item: tuple[ModelReply, bytes] | None) -> None:
        with contextlib.suppress(queue.Empty):
            self._waiting.get_nowait()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(item)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            model = self._make(*item)
            for callback in list(self._callbacks):
                self._call(callback, model)

    def _call(self, callback: OnModel, model: Model) -> None:
        try:
            callback(model)
        except Exception:
            if callback not in self._complained:
                log.exception("a callback for new models raised, it is not told again")
            self._complained.add(callback)


def settings_from(given: Settings | Mapping[str, object] | str | Path | None) -> Settings:
    """Return settings from whatever a program gives: values, a TOML file, or texts by their names."""
    if isinstance(given, Settings):
        return given
    files = [Path(given)] if isinstance(given, str | Path) else []
    named = given if isinstance(given, Mapping) else {}
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in named.items()}
    missing = suggested(load_settings(Settings, files, {}, texts), own=True)
    return load_settings(Settings, files, {}, {**texts, **missing}).settings


def _with_data(settings: Settings, data: str) -> Settings:
    import msgspec

    federation = msgspec.structs.replace(settings.federation, data=data)
    return msgspec.structs.replace(settings, federation=federation)
