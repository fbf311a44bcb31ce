"""The base of all reports, and those that any party may make."""

from __future__ import annotations

from typing import ClassVar

import msgspec

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""Levels, as `logging` counts them."""


class Report(msgspec.Struct, frozen=True):
    """Base of all reports: a phrase for people, a level, and fields that are logged as key=value."""

    phrase: ClassVar[str]
    level: ClassVar[int] = INFO

    def fields(self) -> dict[str, object]:
        """Return the fields by name, in the order of their declaration."""
        return msgspec.structs.asdict(self)


class MessageDropped(Report, frozen=True):
    """A message that does not belong here was dropped."""

    phrase: ClassVar[str] = "message dropped"
    level: ClassVar[int] = WARNING
    sender: str
    kind: str
    reason: str


class LateMessageDropped(MessageDropped, frozen=True):
    """A message of a term, leader or round that is over was dropped: usual while assignments change."""

    phrase: ClassVar[str] = "late message dropped"
    level: ClassVar[int] = DEBUG


class MessageNotMade(Report, frozen=True):
    """A message that no reader would accept was left out instead of being sent."""

    phrase: ClassVar[str] = "message not made"
    level: ClassVar[int] = ERROR
    reason: str


class RowsSetAside(Report, frozen=True):
    """Rows of the own store that could not be read were moved out of the way."""

    phrase: ClassVar[str] = "rows set aside"
    level: ClassVar[int] = ERROR
    table: str
    rows: int


class JobFailure(Report, frozen=True):
    """A computation raised; `round_no` is 0 for a job of no round."""

    phrase: ClassVar[str] = "job failed"
    level: ClassVar[int] = ERROR
    job: str
    reason: str
    round_no: int = 0
