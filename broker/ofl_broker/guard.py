"""The access policy as plugins of amqtt.

amqtt has no certificates here: a party is whom it says it is. What the policy forbids to that name is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amqtt.contexts import Action
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from ofl_broker.policy import Party, may_publish, may_receive, may_subscribe
from ofl_iot.ids import OBSERVER, OPERATOR, FederationId
from ofl_iot.protocol.topics import Topics

_ASKED = {Action.PUBLISH: may_publish, Action.SUBSCRIBE: may_subscribe, Action.RECEIVE: may_receive}


def guard_plugins(federation: FederationId) -> dict[str, dict[str, Any]]:
    """What goes into amqtt's configuration under `plugins`."""
    return {f"{__name__}.{plugin.__name__}": {"federation": federation} for plugin in (NameGuard, TopicGuard)}


def _is_own(client_id: str, federation: str, name: str) -> bool:
    """Whether a session is of its bearer's name; several that only read may visit at a time."""
    visiting = name in (OBSERVER, OPERATOR) and client_id.startswith(f"{federation}.{name}.")
    return visiting or client_id in (name, f"{federation}.{name}")


class NameGuard(BaseAuthPlugin):  # type: ignore[misc]  # amqtt is not typed
    """Lets in whoever gives one valid name, as user and as client (after the federation), and a will it may publish."""

    async def authenticate(self, *, session: Session) -> bool:
        """Whether to accept a CONNECT."""
        name = session.username
        if not name or not Party.of(name) or not _is_own(session.client_id, self.config.federation, name):
            return False
        topics = Topics(FederationId(self.config.federation))
        return not session.will_flag or may_publish(topics, name, session.will_topic)

    @dataclass
    class Config:
        """Configuration of this plugin."""

        federation: str


class TopicGuard(BaseTopicPlugin):  # type: ignore[misc]  # amqtt is not typed
    """Asks the policy about every publish, subscription and delivery."""

    async def topic_filtering(
        self, *, session: Session | None = None, topic: str | None = None, action: Action | None = None
    ) -> bool:
        """Whether a session may do this."""
        if session is None or not session.username or topic is None or action is None:
            return False
        return _ASKED[action](Topics(FederationId(self.config.federation)), session.username, topic)

    @dataclass
    class Config:
        """Configuration of this plugin."""

        federation: str
