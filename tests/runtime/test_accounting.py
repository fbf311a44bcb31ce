"""A ledger opened in another process is the ledger opened in this one."""

from __future__ import annotations

import io

import msgspec
import pytest

from ofl_iot.errors import ConfigError
from ofl_iot.jobs import ledger as accounting
from ofl_iot.jobs.ledger import LedgerRequest, open_ledger, open_ledger_apart
from ofl_iot.privacy.events import DpSgdSteps
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.roles.device.privacy_guard import PrivacyRules

RULES = PrivacyRules(planned_steps=50)


def test_another_process_opens_the_same_ledger_and_what_was_spent_is_remembered() -> None:
    fresh = open_ledger(LedgerRequest(RULES, 0.1))
    assert fresh.allowance is not None
    spent = fresh.spend(DpSgdSteps(fresh.allowance.noise_multiplier, 0.1, 20))
    request = LedgerRequest(RULES, 0.1, msgspec.msgpack.encode(spent.to_plain()))
    apart = open_ledger_apart(request)
    assert apart == open_ledger(request)
    assert apart.events == spent.events
    assert apart.steps_left <= fresh.steps_left - 20


def test_a_ledger_that_cannot_be_opened_is_refused_with_the_other_process_s_words() -> None:
    broken = LedgerRequest(RULES, 0.1, msgspec.msgpack.encode({"budget": [8.0, 1e-5], "events": 7}))
    with pytest.raises(ConfigError, match="the stored privacy ledger cannot be read"):
        open_ledger_apart(broken)


def test_a_process_that_died_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "__name__", "ofl_iot.no_such_module")
    with pytest.raises(ConfigError, match=r"could not be opened: .*no_such_module"):
        open_ledger_apart(LedgerRequest(RULES, 0.1))


def test_the_paper_s_mode_needs_no_accountant() -> None:
    ledger = open_ledger(LedgerRequest(PrivacyRules(mode="paper"), 0.1))
    assert ledger.allowance is None


def test_the_other_process_answers_on_standard_output_and_complains_on_the_other(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def ask(request: LedgerRequest) -> int:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(msgspec.msgpack.encode(request))))
        return accounting.main()

    paper = LedgerRequest(PrivacyRules(mode="paper"), 0.1)
    assert ask(paper) == 0
    assert Ledger.from_plain(msgspec.msgpack.decode(capsysbinary.readouterr().out)) == open_ledger(paper)
    assert ask(LedgerRequest(RULES, 0.1, msgspec.msgpack.encode({}))) == 1
    assert b"the stored privacy ledger cannot be read" in capsysbinary.readouterr().err
