"""Noticing poisoned clusters and devices: s-factors from encrypted scores, cluster weights, the leader's gate."""

from __future__ import annotations
