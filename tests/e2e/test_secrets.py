"""No key, share, parameter or payload in the logs and results of a whole encrypted run, at the most verbose level."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_agents.cli import main
from ofl_iot.crypto.entropy import SystemEntropy
from ofl_iot.jobs.toolbox import DeviceToolbox
from ofl_iot.roles.keys.participant import TABLE as KEYS
from ofl_iot.roles.storage import Put
from ofl_iot.runtime.addressing import Wire
from ofl_iot.runtime.store import SqliteStore
from tests.e2e.leaks import Secrets

planted = logging.getLogger("planted")
"""Logs what nobody must, so that the search is seen to find it."""
FORMS: dict[str, Any] = {
    "hex": bytes.hex,
    "HEX": lambda secret: secret.hex().upper(),
    "base64": lambda secret: base64.b64encode(secret).decode(),
    "base64 for addresses": lambda secret: base64.urlsafe_b64encode(secret).decode(),
    "repr": repr,
    "repr, cut off": lambda secret: repr(secret)[:45],
    "numbers": lambda secret: str(list(secret)),
}
VECTOR_FORMS: dict[str, Any] = {
    "repr": repr,
    "str": str,
    "list": lambda vector: str(vector.tolist()),
    "bytes": lambda vector: vector.tobytes().hex(),
}


# --- the search itself


@pytest.mark.parametrize("form", FORMS)
@given(st.binary(min_size=24, max_size=64).filter(lambda secret: len(set(secret[:8])) > 5))
def test_a_secret_in_any_form_is_found(form: str, secret: bytes) -> None:
    text = f"2026-11-16 12:00:00 DEBUG x: keys made party=a key={FORMS[form](secret)} n=3"
    assert Secrets([b"other bytes " * 3, secret], []).found_in(text)
    assert not Secrets([b"other bytes " * 3], []).found_in(text)


@pytest.mark.parametrize("form", VECTOR_FORMS)
@pytest.mark.parametrize("part", [slice(None), slice(3, 7)])
def test_an_array_in_any_form_is_found(form: str, part: slice) -> None:
    vector = np.random.default_rng(3).normal(size=20).astype(np.float32)
    text = f"trained party=a params={VECTOR_FORMS[form](vector[part])}"
    assert Secrets([vector.tobytes()], [vector]).found_in(text)
    assert not Secrets([], [vector + 1]).found_in(text)


@given(st.lists(st.floats(-2, 2, width=16), min_size=2, max_size=30))
def test_half_precision_numbers_are_found_as_numpy_prints_them(values: list[float]) -> None:
    vector = np.array([value if abs(value) > 0.02 else 0.0933837890625 for value in values] + [0.0803222656] * 2)
    assert Secrets([], [vector]).found_in(f"params={vector}")


def test_ordinary_lines_are_no_secrets() -> None:
    vector = np.random.default_rng(3).normal(size=20_000).astype(np.float32)
    vector[:2] = 0.5
    lines = (
        "trained loss=0.69314718 steps=10 seconds=0.0300001\nround closed round_no=3 accuracy=0.8891 <obj at 0x7f3c9a>",
        "2,0.5000,0.5000,0.1634",
    )
    assert not Secrets([vector.tobytes()], [vector]).found_in("\n".join(lines))


# --- a whole run


@dataclass
class Witness:
    """Everything that is secret in a run, as it comes into being, and everything that was written about it."""

    blobs: set[bytes] = field(default_factory=set)
    vectors: list[np.ndarray] = field(default_factory=list)
    log: io.StringIO = field(default_factory=io.StringIO)

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stored values, sent payloads, drawn randomness, trained vectors."""
        apply, outgoing, random_bytes = SqliteStore.apply, Wire.outgoing, SystemEntropy.random_bytes
        run = DeviceToolbox.run

        def note_store(store: SqliteStore, ops: Any) -> None:
            for op in ops:
                if isinstance(op, Put):
                    self.blobs.add(op.value)
                    if (op.table, op.key) == (KEYS, "private"):
                        planted.debug("careless: key=%s", op.value)
            apply(store, ops)

        def note_payload(wire: Wire, command: Any) -> tuple[str, bytes]:
            topic, payload = outgoing(wire, command)
            self.blobs.add(payload)
            return topic, payload

        def note_random(entropy: SystemEntropy, count: int) -> bytes:
            drawn = random_bytes(entropy, count)
            self.blobs.add(drawn)
            return drawn

        def note_vectors(toolbox: DeviceToolbox, job: Any) -> Any:
            result = run(toolbox, job)
            for owner in (job, result):
                self.vectors += [value for value in vars(owner).values() if isinstance(value, np.ndarray)]
            return result

        monkeypatch.setattr(SqliteStore, "apply", note_store)
        monkeypatch.setattr(Wire, "outgoing", note_payload)
        monkeypatch.setattr(SystemEntropy, "random_bytes", note_random)
        monkeypatch.setattr(DeviceToolbox, "run", note_vectors)

    @property
    def secrets(self) -> Secrets:
        return Secrets(self.blobs, self.vectors)


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Iterator[Witness]:
    """Watches a run in this process; its log is that of every logger, at level DEBUG."""
    witness, root = Witness(), logging.getLogger()
    witness.watch(monkeypatch)
    handler = logging.StreamHandler(witness.log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield witness
    root.removeHandler(handler)
    root.setLevel(before)


def test_nothing_secret_is_in_the_logs_and_results_of_an_encrypted_run(
    witness: Witness, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, summary = tmp_path / "results", tmp_path / "run.json"
    options = ["--devices", "5", "--rounds", "4", "--set", "fleet.clusters=2", "--set", "training.pause_s=0.2"]
    assert main(["--log-level", "debug", "sim", *options, "--out", str(out), "--json", str(summary)]) == 0
    log = witness.log.getvalue().splitlines()
    careless = [line for line in log if " planted: " in line]
    ordinary = "\n".join(line for line in log if " planted: " not in line)
    secrets = witness.secrets
    assert len(secrets) > 1_000_000
    assert "encrypted=True" in ordinary
    assert " DEBUG ofl_iot.runtime.live: " in ordinary
    results = "".join(path.read_text() for path in [summary, *out.rglob("*")] if path.is_file())
    shown = capsys.readouterr()
    assert secrets.found_in(ordinary) == []
    assert secrets.found_in(results + shown.out + shown.err) == []
    assert len(careless) == 5
    assert all(secrets.found_in(line) for line in careless)
    longest = max(witness.blobs, key=len)
    vector = next(vector for vector in reversed(witness.vectors) if np.all(np.abs(vector[:3]) > 0.02))
    for line in (f"payload={longest[:12]!r}", f"params={vector[:3]}", f"body={base64.b64encode(longest)[:40]!r}"):
        assert secrets.found_in(line)
