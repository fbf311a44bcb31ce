"""Threshold CKKS between leaders and coordinator: the paper's ThFHE with keys made without a dealer.

`params` and `wire` are light; whatever computes on polynomials imports numba, so import those modules where a
device first acts as leader.
"""
