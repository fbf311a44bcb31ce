"""Baselines, attacks, benches and the reproduction of the paper's evaluation."""
