"""Prints the graph of rooms that CONTRIBUTING.md shows: `python -m tests.import_graph`."""

from __future__ import annotations

import sys

from tests.test_layers import IMPORTS

START, END = "<!-- import graph -->\n```\n", "```\n<!-- end -->"
PROGRAMS = ("ofl_agents", "ofl_broker", "ofl_research")


def room_of(module: str) -> str:
    """Return `protocol` for `ofl_iot.protocol.codec`, `ofl_agents` for a module of it, empty for what is not ours."""
    words = module.split(".")
    if words[0] in PROGRAMS:
        return words[0]
    return words[1] if words[0] == "ofl_iot" and len(words) > 1 and words[1] != "__init__" else ""


def edges() -> dict[str, set[str]]:
    """Return which rooms each room imports, imports inside functions included."""
    graph: dict[str, set[str]] = {}
    for each in IMPORTS:
        room, target = room_of(each.module), room_of(each.target)
        if room and room != "__version__":
            graph.setdefault(room, set())
            if target and target not in (room, "__version__"):
                graph[room].add(target)
    for targets in list(graph.values()):
        for target in targets:
            graph.setdefault(target, set())
    return graph


def drawing() -> str:
    """Return a line for each room, below those it imports: the room, an arrow, what it imports."""
    graph, lines, placed = edges(), [], set()
    width = max(map(len, graph))
    while len(placed) < len(graph):
        ready = sorted(room for room in graph if room not in placed and graph[room] <= placed)
        if not ready:
            raise ValueError(f"rooms import each other in a circle: {sorted(set(graph) - placed)}")
        for room in ready:
            targets = sorted(graph[room])
            lines.append(f"{room:{width}} -> {' '.join(targets)}" if targets else room)
        placed.update(ready)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(drawing())
