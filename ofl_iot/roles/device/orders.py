"""What an operator ordered this device to do: judged, durable, obeyed once."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ofl_iot.errors import LateError
from ofl_iot.protocol.fleet_orders import Order
from ofl_iot.roles.commands import Command, Compute, Persist
from ofl_iot.roles.device.phases import Activity
from ofl_iot.roles.events import OrderJudged
from ofl_iot.roles.job_kinds.device import JudgeOrder
from ofl_iot.roles.reports.device import OrderObeyed, OrderRefused
from ofl_iot.roles.storage import Put, Stored

ORDERS = "device.orders"


class Orders:
    """The last order that this device obeyed; orders of its number or below are over."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._number = 0

    def restore(self, stored: Stored) -> None:
        """Take up what was ordered before a restart."""
        if kept := stored.get(ORDERS, {}).get("last"):
            self._number, self._activity.paused_by = msgspec.msgpack.decode(kept, type=tuple[int, str])

    def take(self, order: Order) -> Iterator[Command]:
        """Have an order judged, unless it is over."""
        if order.number <= self._number:
            raise LateError(f"order {order.number}, the last one was {self._number}")
        yield Compute(JudgeOrder(order))

    def judged(self, event: OrderJudged) -> Iterator[Command]:
        """Obey an order that its operator signed; whoever forged one is not believed and not answered."""
        order = event.order
        if event.refusal:
            yield OrderRefused(action=order.action, number=order.number, reason=event.refusal)
            return
        if order.number <= self._number:
            return
        self._number = order.number
        self._activity.paused_by = event.by if order.action == "pause" else ""
        yield Persist((Put(ORDERS, "last", msgspec.msgpack.encode((self._number, self._activity.paused_by))),))
        yield OrderObeyed(action=order.action, by=event.by, number=order.number)
