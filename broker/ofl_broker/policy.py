"""Who may publish and subscribe to what: one table, from which the rules of every broker are made.

A party is told by its user name, which a production broker takes from the certificate. Whoever publishes must stand in
the topic's `{sender}`, whoever subscribes in its `{receiver}`, where the topic has one. A broker does not know which
device leads which cluster: any device may lead, under its own name only, and the roles check whom they listen to.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ofl_iot.errors import TopicError
from ofl_iot.ids import COORDINATOR, DECRYPTOR, OBSERVER, OPERATOR, is_id
from ofl_iot.protocol.topics import Kind, Topic, Topics


class Party(enum.Enum):
    """For whom a rule is; the value is the id that belongs to one party alone."""

    MEMBER = ""
    """Whoever bears a certificate of the federation: every device, and the named ones too, each under its own name.

    A named party gains nothing by it: the topic tree has no place for it where only devices stand.
    """
    COORDINATOR = COORDINATOR
    DECRYPTOR = DECRYPTOR
    OBSERVER = OBSERVER
    """Reads what the fleet says of itself and publishes nothing; it is no member."""
    OPERATOR = OPERATOR
    """Gives orders, and reads what an observer reads; it is no member either."""

    @classmethod
    def of(cls, name: str) -> frozenset[Party]:
        """What the bearer of a user name is; nothing if it is no id."""
        if name in (OBSERVER, OPERATOR):
            return frozenset({cls(name)})
        return frozenset(party for party in cls if party.value in ("", name)) if is_id(name) else frozenset()


class Action(enum.Enum):
    """What a party does with a topic, in mosquitto's word for it."""

    PUBLISH = "write"
    SUBSCRIBE = "read"


@dataclass(frozen=True)
class Rule:
    """Who publishes to the topics of a kind and who reads them."""

    publish: frozenset[Party]
    subscribe: frozenset[Party]
    to_itself: bool = False
    """A reader sees only what it sent itself."""

    def parties(self, action: Action) -> frozenset[Party]:
        """Who may do this."""
        return self.publish if action == Action.PUBLISH else self.subscribe


_MEMBER = frozenset({Party.MEMBER})
_COORDINATOR = frozenset({Party.COORDINATOR})
_SERVERS = frozenset({Party.COORDINATOR, Party.DECRYPTOR})
_OPERATOR = frozenset({Party.OPERATOR})
_OBSERVER = frozenset({Party.OBSERVER, Party.OPERATOR})

POLICY: Mapping[Kind, Rule] = {
    Kind.STATUS: Rule(_MEMBER, _COORDINATOR | _OBSERVER),
    Kind.TELEMETRY: Rule(_MEMBER, _COORDINATOR),
    Kind.ECHO: Rule(_MEMBER, _MEMBER, to_itself=True),
    Kind.ASSIGNMENT: Rule(_COORDINATOR, _MEMBER),
    Kind.RECEIPT: Rule(_MEMBER, _MEMBER),
    Kind.BLOCKS: Rule(_MEMBER, _MEMBER),
    Kind.CLUSTER_CHANGE: Rule(_MEMBER, _MEMBER),
    Kind.UPDATE: Rule(_MEMBER, _MEMBER),
    Kind.PULL: Rule(_MEMBER, _MEMBER),
    Kind.ROUND_OPEN: Rule(_COORDINATOR, _MEMBER | _OBSERVER),
    Kind.CONTRIBUTION: Rule(_MEMBER, _COORDINATOR),
    Kind.DECRYPT: Rule(_COORDINATOR, _MEMBER),
    Kind.SHARE: Rule(_MEMBER, _SERVERS),
    Kind.KEYS: Rule(_MEMBER, _MEMBER),
    Kind.SERVERDEC: Rule(_SERVERS, _MEMBER),
    Kind.MANIFEST: Rule(_COORDINATOR, _MEMBER),
    Kind.GLOBAL_PART: Rule(_COORDINATOR, _MEMBER),
    Kind.CARD: Rule(_COORDINATOR, _MEMBER | _OBSERVER),
    Kind.VITALS: Rule(_MEMBER, _OBSERVER),
    Kind.REFUSAL: Rule(_MEMBER, _MEMBER | _OBSERVER),
    Kind.CLUSTER_NOTE: Rule(_COORDINATOR, _OBSERVER),
    Kind.ROUND_NOTE: Rule(_COORDINATOR, _OBSERVER),
    Kind.ORDER: Rule(_OPERATOR, _MEMBER | _OBSERVER),
    Kind.BOOKS: Rule(_COORDINATOR, _COORDINATOR),
}
"""Every kind must be here. What names no receiver (an opened round, the global model) every member reads.

A leader's changes are sealed: who reads them without being in its cluster learns their size.
"""


def granted(topics: Topics, party: Party, action: Action, me: str) -> list[str]:
    """The patterns a party called `me` may publish or subscribe to; `me` may be a broker's own placeholder."""
    return [_bound(topics, kind, action, me, party) for kind, rule in POLICY.items() if party in rule.parties(action)]


def granted_to(topics: Topics, name: str, action: Action) -> list[str]:
    """All patterns the bearer of a name may publish or subscribe to."""
    parties = Party.of(name)
    return [pattern for party in Party if party in parties for pattern in granted(topics, party, action, name)]


def denied_to(topics: Topics, name: str) -> list[str]:
    """Patterns that rules for every member would give to the bearer of a name that is no member.

    For brokers whose rules for members match any user name: these come before them.
    """
    allowed = {*granted_to(topics, name, Action.PUBLISH), *granted_to(topics, name, Action.SUBSCRIBE)}
    wide = [each for action in Action for each in granted(topics, Party.MEMBER, action, name)]
    return [] if Party.MEMBER in Party.of(name) else [each for each in dict.fromkeys(wide) if each not in allowed]


def may_publish(topics: Topics, name: str, topic: str) -> bool:
    """Whether the bearer of a name may publish to a topic."""
    parsed = _parsed(topics, topic)
    if parsed is None or not POLICY[parsed.kind].publish & Party.of(name):
        return False
    return parsed.sender == name or "{sender}" not in parsed.kind.value


def may_receive(topics: Topics, name: str, topic: str) -> bool:
    """Whether a message on a topic may be handed to the bearer of a name."""
    parsed = _parsed(topics, topic)
    if parsed is None or not (rule := POLICY[parsed.kind]).subscribe & Party.of(name):
        return False
    receiver = None if name in (OBSERVER, OPERATOR) else parsed.receiver
    return (parsed.sender if rule.to_itself else receiver) in (None, name)


def may_subscribe(topics: Topics, name: str, pattern: str) -> bool:
    """Whether the bearer of a name may subscribe to a pattern: all it matches must be granted."""
    return any(_covers(grant, pattern) for grant in granted_to(topics, name, Action.SUBSCRIBE))


def _parsed(topics: Topics, topic: str) -> Topic | None:
    try:
        return topics.parse(topic)
    except TopicError:
        return None


def _bound(topics: Topics, kind: Kind, action: Action, me: str, party: Party) -> str:
    if action == Action.PUBLISH or POLICY[kind].to_itself:
        return topics.pattern(kind, sender=me)
    if party in (Party.OBSERVER, Party.OPERATOR):
        return topics.pattern(kind)
    return topics.pattern(kind, receiver=me)


def _covers(grant: str, pattern: str) -> bool:
    """Whether every topic that `pattern` matches is matched by `grant`, whose only wildcard is `+`."""
    granted_levels, levels = grant.split("/"), pattern.split("/")
    return len(granted_levels) == len(levels) and all(
        level != "#" and mine in ("+", level) for mine, level in zip(granted_levels, levels, strict=True)
    )
