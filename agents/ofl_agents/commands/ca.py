"""`ofl ca`: the federation's authority."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ofl_agents.enrolment.authority import Authority
from ofl_iot.identity.certificates import Validity
from ofl_iot.identity.dates import shown
from ofl_iot.ids import federation_id


def add_options(parser: argparse.ArgumentParser) -> None:
    """Make one, or show it."""
    parser.add_argument("action", choices=["init", "show"])
    parser.add_argument("--ca", type=Path, required=True, metavar="DIR", help="the authority's folder")
    parser.add_argument("--federation", default="demo", help="whose authority it becomes (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Print what parties need to know of the authority."""
    if options.action == "init":
        authority = Authority.found(options.ca, federation_id(options.federation), time.time())
    else:
        authority = Authority(options.ca)
    certificate = authority.certificate
    until = Validity(certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp())
    sys.stdout.write(f"federation   {authority.federation}\n")
    sys.stdout.write(f"fingerprint  {authority.fingerprint.hex()}\n")
    sys.stdout.write(f"valid until  {shown(until.not_after)}\n")
    authority.close()
    return 0
