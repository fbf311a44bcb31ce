"""User code in a process of its own: whatever it does, the agent goes on, knows why, and keeps its secrets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ofl_iot.apps.confinement import landlock_version
from ofl_iot.apps.process import Limits, TrainerProcess
from ofl_iot.apps.runner import AppDiedError, AppFailedError
from ofl_iot.apps.workload import AppWorkload
from ofl_iot.workloads.base import TrainJob

APP = """
import ctypes, os, time
import numpy as np
from ofl_iot import NumpyApp, accuracy

def samples(where):
    kind, _, detail = where.partition(":")
    if kind == "raise":
        raise ValueError("sensor 7 has no calibration")
    if kind == "crash":
        ctypes.string_at(0)
    if kind == "exit":
        os._exit(3)
    if kind == "hang":
        while True:
            pass
    if kind == "hoard":
        np.ones(4 << 30, np.uint8)
    if kind == "leave":
        raise SystemExit("good-bye")
    if kind == "print":
        print("x" * (2 << 20))
    if kind == "environment":
        raise RuntimeError(" ".join(sorted(os.environ)))
    if kind == "read":
        raise RuntimeError(open(detail).read())
    if kind == "count":
        return np.zeros((len(os.listdir(detail)), 4)), np.zeros(len(os.listdir(detail)), int)
    if kind == "empty":
        return np.zeros((0, 4)), np.zeros(0, int)
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 200)
    return rng.normal(size=(200, 4)) + 2 * labels[:, None], labels

app = NumpyApp("trial", "logistic", 4, 2, samples=samples, judge=samples, metrics={"accuracy": accuracy})
"""
JOB = TrainJob(steps=20, batch_size=50, learning_rate=0.5)
PRIVATE = TrainJob(steps=20, batch_size=50, learning_rate=0.5, clip_norm=1.0, noise_multiplier=1.0)


@pytest.fixture(name="app")
def _app(tmp_path: Path) -> str:
    path = tmp_path / "trial_app.py"
    path.write_text(APP)
    return f"{path}:app"


@pytest.fixture(name="process")
def _process(app: str) -> Iterator[TrainerProcess]:
    process = TrainerProcess(app, Limits(quiet_s=60))
    yield process
    process.close()


def test_a_model_is_trained_and_judged_in_the_other_process(process: TrainerProcess) -> None:
    process.open(0, "")
    workload = AppWorkload(process, repeats=True)
    assert (workload.name, workload.size, workload.sample_count) == ("trial", 10, 200)
    start = workload.initial(1)
    assert np.array_equal(start, workload.initial(1))
    for job, least in ((JOB, 0.9), (PRIVATE, 0.7)):
        workload.look()
        result = workload.train(start, job, np.random.default_rng(5))
        assert result.sampling_rate == 0.25
        judged = workload.evaluate(result.params)
        assert judged.measured["accuracy"] >= least
        assert judged.accuracy == judged.measured["accuracy"]
    again = workload.train(start, PRIVATE, np.random.default_rng(5))
    assert np.array_equal(again.params, result.params)
    assert process.pid != os.getpid()
    assert workload.label_histogram().sum() == 200


def test_noise_is_fresh_unless_a_simulation_asks_for_its_own(process: TrainerProcess) -> None:
    process.open(0, "")
    workload = AppWorkload(process)
    first, second = (workload.train(workload.initial(1), PRIVATE, np.random.default_rng(5)).params for _ in range(2))
    assert not np.array_equal(first, second)


def test_user_code_that_raises_is_told_with_its_own_frames(process: TrainerProcess) -> None:
    process.open(0, "raise")
    with pytest.raises(AppFailedError, match="sensor 7 has no calibration") as caught:
        process.look(0, private=True)
    assert "trial_app.py" in str(caught.value)
    assert "served.py" not in str(caught.value)
    process.open(0, "")
    assert process.look(0, private=True).count == 200
    assert (process.starts, process.failures) == (1, 1)


@pytest.mark.parametrize(
    ("manner", "says"), [("crash", "SIGSEGV"), ("exit", "with exit code 3"), ("hang", "said nothing for 4 s")]
)
def test_a_process_that_dies_is_told_and_replaced(app: str, manner: str, says: str) -> None:
    process = TrainerProcess(app, Limits(quiet_s=4, start_s=60))
    try:
        process.open(0, "")
        process.open(1, manner)
        vector = process.initial(0)
        with pytest.raises(AppDiedError, match=says) as caught:
            process.evaluate(1, vector)
        assert manner == "exit" or "trial_app.py" in str(caught.value)
        assert process.look(0, private=True).count == 200
        assert process.starts == 2
    finally:
        process.close()


def test_leaving_and_talking_too_much_end_nothing(process: TrainerProcess) -> None:
    process.open(0, "leave")
    with pytest.raises(AppFailedError, match="SystemExit: good-bye"):
        process.look(0, private=True)
    process.open(0, "print")
    for _ in range(3):
        assert process.look(0, private=True).count == 200
    assert process.starts == 1


def test_memory_beyond_the_limit_is_refused_with_the_users_line(app: str) -> None:
    process = TrainerProcess(app, Limits(memory_mib=1024))
    try:
        process.open(0, "hoard")
        with pytest.raises(AppFailedError, match=r"MemoryError[^$]*trial_app\.py"):
            process.look(0, private=True)
    finally:
        process.close()


def test_the_environment_of_user_code_holds_no_settings_and_no_credentials(
    process: TrainerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OFL_MQTT__PASSWORD", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "STATE_DIRECTORY", "APP_SENSOR"):
        monkeypatch.setenv(name, "secret")
    process.open(0, "environment")
    with pytest.raises(AppFailedError) as caught:
        process.look(0, private=True)
    names = str(caught.value).split("\n")[0].split()
    assert "APP_SENSOR" in names
    assert not {"OFL_MQTT__PASSWORD", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "STATE_DIRECTORY"} & set(names)


@pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
def test_the_kernel_keeps_user_code_from_the_agents_files(app: str, tmp_path: Path) -> None:
    state, data = tmp_path / "state", tmp_path / "data"
    state.mkdir()
    data.mkdir()
    (state / "key.pem").write_text("the key")
    (data / "reading").write_text("a reading")
    process = TrainerProcess(app, hidden=(state,), keep=(data,))
    try:
        process.open(0, f"read:{state}/key.pem")
        with pytest.raises(AppFailedError, match="PermissionError"):
            process.look(0, private=True)
        process.open(0, f"read:{data}/reading")
        with pytest.raises(AppFailedError, match="RuntimeError: a reading"):
            process.look(0, private=True)
        (data / "later").write_text("came later")
        process.open(0, f"read:{data}/later")
        with pytest.raises(AppFailedError, match="RuntimeError: came later"):
            process.look(0, private=True)
    finally:
        process.close()


def test_exactly_the_data_that_were_paid_for_are_trained_on(process: TrainerProcess, tmp_path: Path) -> None:
    data = tmp_path / "records"
    data.mkdir()
    for name in "abc":
        (data / name).touch()
    process.open(0, f"count:{data}")
    vector = process.initial(0)
    assert process.look(0, private=True).count == 3
    (data / "d").touch()
    _, report = process.train(0, vector, JOB, count=3)
    assert report.steps == JOB.steps
    with pytest.raises(AppFailedError, match="3 records were paid for, 0 are frozen"):
        process.train(0, vector, JOB, count=3)
    assert process.look(0, private=True).count == 4
    with pytest.raises(AppFailedError, match="3 records were paid for, 4 are frozen"):
        process.train(0, vector, JOB, count=3)


def test_no_data_yet_is_no_failure(process: TrainerProcess) -> None:
    process.open(0, "empty")
    assert process.look(0, private=True).count == 0
    assert process.failures == 0


def test_an_idle_process_ends_and_the_next_job_starts_another(app: str) -> None:
    process = TrainerProcess(app, Limits(idle_s=0.2))
    try:
        process.open(0, "")
        deadline = time.monotonic() + 60
        while process.pid is not None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert process.look(0, private=True).count == 200
        assert process.starts == 2
    finally:
        process.close()


def test_the_process_outlives_the_thread_that_asked_first(process: TrainerProcess) -> None:
    asking = threading.Thread(target=process.describe)
    asking.start()
    asking.join(60)
    process.open(0, "")
    assert process.look(0, private=True).count == 200
    assert process.starts == 1


def test_an_app_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import surely_not_installed\n")
    process = TrainerProcess(f"{tmp_path}/broken.py:app")
    try:
        with pytest.raises(AppFailedError, match="surely_not_installed"):
            process.describe()
    finally:
        process.close()
