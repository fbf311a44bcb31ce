"""One way to send what is due and to look again later, for every body that goes in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ofl_iot.protocol.messages import Part
from ofl_iot.roles.commands import CancelTimer, Command, Publish, SetTimer
from ofl_iot.roles.transfer import BodyExchange


def send_due(
    exchange: BodyExchange, timer: str, publish: Callable[[str, Part], Publish], now: float
) -> Iterator[Command]:
    """Send what was not confirmed, and set the timer to look again while anything waits for its confirmation."""
    for peer, part in exchange.due(now):
        yield publish(peer, part)
    yield SetTimer(timer, now + exchange.resend_s) if exchange.pending else CancelTimer(timer)
