"""Log lines: readable by people and programs, and nothing a peer sends can forge or flood them."""

from __future__ import annotations

import json
import logging
import math
import shlex
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.roles import reports
from ofl_iot.roles.reports.base import MessageDropped, Report
from ofl_iot.roles.reports.coordinator import Clustered, RoundClosed
from ofl_iot.roles.reports.device import TrainingDiverged
from ofl_iot.runtime.logs import (
    MAX_TEXT,
    JsonFormatter,
    SenderLimit,
    TextFormatter,
    escape,
    line_of,
    log_report,
    set_format,
)
from ofl_iot.transport.settings import Address

EVIL = 'x" party=coordinator\nERROR forged: all is lost\x1b[2J\u202e'


class Kept(logging.Handler):
    """Keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, Kept]]:
    logger, kept = logging.getLogger("tests.logs"), Kept()
    logger.addHandler(kept)
    logger.setLevel(logging.DEBUG)
    yield logger, kept
    logger.removeHandler(kept)


def text_of(record: logging.LogRecord) -> str:
    return TextFormatter().format(record).partition(": ")[2]


def json_of(record: logging.LogRecord) -> dict[str, Any]:
    (line,) = JsonFormatter().format(record).splitlines()
    return json.loads(line)  # type: ignore[no-any-return]


def test_a_report_is_a_phrase_then_its_fields(log: Any) -> None:
    logger, kept = log
    log_report(logger, "coordinator", RoundClosed(3, 2, {"d1": 0.5, "d2": 0.5}, ("d3",)))
    (record,) = kept.records
    assert text_of(record) == (
        'round closed party=coordinator round_no=3 completed=2 weights={"d1": 0.5, "d2": 0.5} excluded=["d3"]'
    )
    entry = json_of(record)
    assert (entry["level"], entry["logger"], entry["message"]) == ("info", "tests.logs", "round closed")
    assert entry["weights"] == {"d1": 0.5, "d2": 0.5}
    assert entry["round_no"] == 3
    assert entry["time"].endswith("Z")


def test_a_peer_forges_neither_a_line_nor_a_field(log: Any) -> None:
    logger, kept = log
    log_report(logger, "d1", MessageDropped(EVIL, "UPDATE", EVIL))
    logger.warning("refused peer=%s reason=%s", "somebody", EVIL)
    logger.warning("certificate is overdue: %s folder=%s", EVIL, "here")
    for record in kept.records:
        line = TextFormatter().format(record)
        assert len(line.splitlines()) == 1
        assert line.isprintable()
        assert "forged" in json.dumps(json_of(record))
    keys = [word.partition("=")[0] for word in shlex.split(text_of(kept.records[0]))]
    assert keys == ["message", "dropped", "party", "sender", "kind", "reason"], "what else it holds is quoted"
    assert json_of(kept.records[0])["party"] == "d1"
    assert json_of(kept.records[1])["reason"] == escape(EVIL)


def test_a_peer_does_not_flood_the_log(log: Any) -> None:
    logger, kept = log
    log_report(logger, "d1", MessageDropped("d2", "UPDATE", "\0" * 100_000))
    logger.warning("refused reason=%s", "y" * 100_000)
    for record in kept.records:
        assert len(text_of(record)) < 2 * MAX_TEXT + 100
        assert len(json_of(record)["reason"]) == MAX_TEXT


@given(text=st.text())
def test_escaped_text_is_short_and_printable(text: str) -> None:
    assert escape(text).isprintable()
    assert len(escape(text)) <= MAX_TEXT
    if text.isprintable() and len(text) <= MAX_TEXT:
        assert escape(text) == text


def test_a_plain_record_names_its_own_fields(log: Any) -> None:
    logger, kept = log
    logger.error("store failed party=%s bytes=%d serial=%x", "d1", 7, 255)
    logger.info("nothing to add")
    logger.info("%s party=%s", "first", "d2")
    assert text_of(kept.records[0]) == "store failed party=d1 bytes=7 serial=ff"
    assert json_of(kept.records[0])["message"] == "store failed"
    assert json_of(kept.records[0])["bytes"] == 7
    assert json_of(kept.records[1])["message"] == "nothing to add"
    assert json_of(kept.records[2])["message"] == "first party=d2"


def test_a_traceback_stays_with_its_line(log: Any) -> None:
    logger, kept = log
    try:
        int("odd")
    except ValueError:
        logger.exception("a job raised job=%s", "TrainLocally")
    assert "ValueError: invalid literal" in TextFormatter().format(kept.records[0])
    assert "ValueError: invalid literal" in json_of(kept.records[0])["traceback"]


def test_numbers_that_json_does_not_know_are_text(log: Any) -> None:
    logger, kept = log
    log_report(logger, "d1", TrainingDiverged(math.nan))
    log_report(logger, "d1", TrainingDiverged(np.float32(0.5)))  # type: ignore[arg-type]
    assert [json_of(record)["loss"] for record in kept.records] == ["nan", 0.5]


def test_the_format_can_be_chosen_and_other_handlers_stay_as_they_are() -> None:
    root, mine, other = logging.getLogger(), Kept(), Kept()
    mine.setFormatter(TextFormatter())
    try:
        root.addHandler(mine)
        root.addHandler(other)
        set_format("json")
        assert isinstance(mine.formatter, JsonFormatter)
        assert other.formatter is None
        set_format("text")
        assert isinstance(mine.formatter, TextFormatter)
    finally:
        root.removeHandler(mine)
        root.removeHandler(other)


def all_reports(kind: type[Report] = Report) -> set[type[Report]]:
    return {each for sub in kind.__subclasses__() for each in ({sub} | all_reports(sub))}


def test_every_report_has_a_phrase_of_its_own_and_a_level() -> None:
    kinds = {each for each in all_reports() if each.__module__.startswith(reports.__name__)}
    assert len(kinds) > 40
    assert len({each.phrase for each in kinds}) == len(kinds)
    assert {each.level for each in kinds} == {logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR}
    reserved = {"party", "time", "level", "logger", "message", "traceback"}
    assert not [each for each in kinds if reserved & {field.name for field in msgspec.structs.fields(each)}]


def test_reports_are_values() -> None:
    report = Clustered(1, 2, ("a", "b"), 0.0)
    assert report == Clustered(1, 2, ("a", "b"), 0.0)
    with pytest.raises(AttributeError):
        report.term = 2  # type: ignore[misc]


def test_a_value_with_a_text_of_its_own_is_shown_by_it() -> None:
    record = logging.LogRecord(
        "l", logging.INFO, "f", 1, "no link broker=%s reason=%r", (Address("b", 1), "shut"), None
    )
    assert str(line_of(record)) == "no link broker=b:1 reason=shut"


# --- floods


def flooded(lines: list[tuple[Report, float]]) -> list[str]:
    """What is left of reports that were made at these times."""
    limit, left = SenderLimit(), []
    logger, kept = logging.getLogger("tests.flood"), Kept()
    logger.addHandler(kept)
    logger.setLevel(logging.DEBUG)
    for report, at in lines:
        log_report(logger, "coordinator", report)
        record = kept.records.pop()
        record.created = at
        if limit.filter(record):
            left.append(text_of(record))
    return left


def test_what_one_sender_causes_is_limited_and_the_rest_counted() -> None:
    """The attack: as many log lines as messages, until the disk is full."""
    noise, other = MessageDropped("d1", "PULL", "no"), MessageDropped("d2", "PULL", "no")
    lines = flooded([*((noise, 0.001 * number) for number in range(5000)), (other, 5.0), (noise, 20.0)])
    assert len(lines) == SenderLimit.BURST + 2
    assert "sender=d2" in lines[-2], "others are heard"
    assert f"left_out={5000 - SenderLimit.BURST}" in lines[-1]


def test_a_flood_under_many_names_takes_bounded_memory() -> None:
    limit = SenderLimit()
    for number in range(3000):
        assert limit.filter(
            logging.LogRecord(
                "x", logging.WARNING, "", 0, "refused peer=%s reason=%s", ((f"10.{number}", 1), "no"), None
            )
        )
    assert len(limit._kept) == SenderLimit.MAX_KEPT


def test_the_port_of_a_peer_makes_no_other_of_it() -> None:
    limit = SenderLimit()
    passed = [
        limit.filter(
            logging.LogRecord(
                "x", logging.WARNING, "", 0, "refused peer=%s reason=%s", (("10.0.0.1", port), "no"), None
            )
        )
        for port in range(200)
    ]
    assert sum(passed) <= SenderLimit.BURST + 1


def test_what_no_peer_causes_is_never_left_out() -> None:
    rounds = RoundClosed(3, 2, {}, ())
    assert len(flooded([(rounds, 0.0)] * 100)) == 100
