"""Faults on purpose: schedules in virtual time, faults on real processes, and a tally that is kept apart."""
