"""A statement says all that an auditor asks for, of the true ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from html.parser import HTMLParser

from ofl_iot.privacy.events import Budget, DpSgdSteps, PaperRelease, Unprotected
from ofl_iot.privacy.ledger import Ledger
from ofl_iot.privacy.statement import Subject, as_html, as_text, statement

SUBJECT = Subject("pump-1", "demo", "ofl-iot 1.2", (("privacy.epsilon", "8"),), balance="epsilon 3.1 of 8 spent")
STEPS = DpSgdSteps(8.5, 1.0, 40)


def dates(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d")


def ledger_of(*events: object) -> Ledger:
    ledger = Ledger(Budget(8.0)).under(mode="rigorous", source="pump", budget=Budget(8.0), at=1e9)
    return replace(ledger, events=tuple(events))


def test_it_names_unit_neighbours_epsilon_mechanism_trust_and_settings():
    text = as_text(statement(SUBJECT, ledger_of(STEPS), 2e9, dates))
    for words in (
        "pump-1 in demo, 2033-05-18",
        "Unit of privacy: a record",
        "zero-out",
        "delta = 1e-05",
        "40 steps, noise multiplier 8.5",
        "privacy.epsilon = 8",
        "ofl-iot 1.2",
        "Balance: epsilon 3.1 of 8 spent.",
        "random numbers",
        "power of two",
    ):
        assert words in text
    assert "lemmas" not in text


def test_what_was_accepted_and_what_was_spent_before_it_is_told():
    ledger = ledger_of(STEPS).renewed(at=1.5e9, reason="the owner signed")
    text = as_text(statement(SUBJECT, ledger, 2e9, dates))
    assert "new budget accepted by the operator: the owner signed" in text
    assert "Spent of the present budget: epsilon = 0.000" in text
    assert f"earlier budgets included: epsilon = {ledger.total_epsilon():.3f}" in text


def test_work_without_protection_and_of_the_paper_is_called_so():
    text = as_text(statement(SUBJECT, ledger_of(Unprotected(3), PaperRelease(1, 1, 5)), 2e9, dates))
    assert "epsilon is infinite" in text
    assert "3 trainings without protection" in text
    assert "read off the private data" in text
    assert "nothing was spent" in as_text(statement(SUBJECT, ledger_of(), 2e9, dates))


def test_the_page_is_whole_and_quotes_what_it_is_given():
    page = as_html(statement(replace(SUBJECT, device="<script>alert(1)</script>"), ledger_of(STEPS), 2e9, dates))
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            tags.append(tag)

    Reader().feed(page)
    assert "script" not in tags
    assert tags.count("h1") == 1
    assert tags.count("h2") == 6
