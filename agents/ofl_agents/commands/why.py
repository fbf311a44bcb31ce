"""`ofl why`: why a device does what it does, from evidence."""

from __future__ import annotations

import argparse
import sys

import msgspec

from ofl_agents.observing import add_view_options, device_in, view_of
from ofl_iot.fleet_view import wording
from ofl_iot.fleet_view.terminal import round_sentence, why_lines


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which device."""
    parser.add_argument("device", metavar="DEVICE")
    parser.add_argument("--round", type=int, metavar="N", help="also: was it in this round, and if not, why")
    parser.add_argument("--json", action="store_true", help="as JSON: code, sentence, values, evidence, what to do")
    add_view_options(parser)
    parser.epilog = "The codes are listed in docs/operating.md. Example: ofl why truck-03 --round 147"


def run(options: argparse.Namespace) -> int:
    """Say why."""
    view = view_of(options)
    device = device_in(view, options.device)
    in_round = round_sentence(view, device, options.round) if options.round is not None else None
    if options.json:
        plain = {
            "device": device.id,
            "state": device.state,
            "sentence": wording.sentence(device.why, view.now_s),
            **msgspec.to_builtins(device.why),
            "cluster": device.cluster,
            "leader": device.leader,
            "now_s": view.now_s,
            "round": {"round_no": options.round, "sentence": in_round} if in_round else None,
        }
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain)).decode() + "\n")
        return 0
    sys.stdout.write("\n".join(why_lines(view, device)) + "\n")
    if in_round:
        sys.stdout.write(f"\n{in_round}\n")
    return 0
