"""Values by topic or by pattern, in a tree of words: a look-up costs the same however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_V = TypeVar("_V")
_ANY = "+"


@dataclass
class _Node(Generic[_V]):
    below: dict[str, _Node[_V]] = field(default_factory=dict)
    here: list[tuple[int, str, _V]] = field(default_factory=list)
    """At most one: when it first came, the whole text, the value."""


class TopicTree(Generic[_V]):
    """A map from topics, or from patterns with `+` and without `#`."""

    def __init__(self) -> None:
        self._root: _Node[_V] = _Node()
        self._count = 0

    def put(self, text: str, value: _V) -> None:
        """Set the value of a topic or pattern; a topic keeps its place in the order."""
        node = self._node(text)
        node.here[:] = [(node.here[0][0] if node.here else self._next(), text, value)]

    def setdefault(self, text: str, value: _V) -> _V:
        """The value of a topic or pattern, which becomes `value` if it had none."""
        node = self._node(text)
        if not node.here:
            node.here.append((self._next(), text, value))
        return node.here[0][2]

    def matching(self, topic: str) -> Iterator[_V]:
        """Values of all patterns that match a topic, at each word those that name it before those with a `+`."""
        return self._matching(self._root, topic.split("/"), 0)

    def matched_by(self, pattern: str) -> list[tuple[str, _V]]:
        """Topics that a pattern matches, with their values, in the order in which they first came."""
        nodes = [self._root]
        for word in pattern.split("/"):
            if word == _ANY:
                nodes = [below for node in nodes for below in node.below.values()]
            else:
                nodes = [node.below[word] for node in nodes if word in node.below]
        found = [here for node in nodes for here in node.here]
        return [(text, value) for _, text, value in sorted(found, key=lambda each: each[0])]

    def _matching(self, node: _Node[_V], words: list[str], at: int) -> Iterator[_V]:
        if at == len(words):
            for _, _, value in node.here:
                yield value
            return
        for word in (words[at], _ANY):
            if (below := node.below.get(word)) is not None:
                yield from self._matching(below, words, at + 1)

    def _node(self, text: str) -> _Node[_V]:
        node = self._root
        for word in text.split("/"):
            node = node.below.setdefault(word, _Node())
        return node

    def _next(self) -> int:
        self._count += 1
        return self._count


def matches(pattern: str, topic: str) -> bool:
    """Whether a pattern matches a topic."""
    wanted, words = pattern.split("/"), topic.split("/")
    return len(wanted) == len(words) and all(w in (_ANY, word) for w, word in zip(wanted, words, strict=True))
