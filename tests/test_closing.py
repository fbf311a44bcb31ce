"""A run without a broker says at its end what that left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.closing import closing_sentence

ROOT = Path(__file__).parent.parent


def test_a_run_that_missed_no_broker_closes_without_a_word() -> None:
    assert closing_sentence([]) == ""
    assert closing_sentence([("tests/test_wheels.py", "hatchling is not installed")]) == ""


def test_what_each_missing_broker_left_out_is_counted_by_file() -> None:
    skipped = [("b.py", "Skipped: mosquitto is not installed"), ("a.py", "mosquitto is not installed")]
    skipped += [("a.py", "mosquitto is not installed"), ("c.py", "nats-server is not installed")]
    told = closing_sentence(skipped)
    assert told.startswith("Skipped for want of mosquitto: 2 in a.py, 1 in b.py; install it with `apt-get")
    assert "Skipped for want of nats-server: 1 in c.py;" in told


def test_a_machine_without_brokers_reads_it_as_the_last_line() -> None:
    hide = "import shutil; shutil.which = lambda *a, **k: None; import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-cov", "tests/broker/test_bench.py")
    done = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", hide, *options], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode in (0, 5), done.stdout + done.stderr
    assert done.stdout.strip().splitlines()[-1].startswith("Skipped for want of nats-server: 1 in "), done.stdout
