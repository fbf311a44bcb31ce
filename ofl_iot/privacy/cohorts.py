"""A ledger for data that grow: every record pays for the releases it can take part in, and no others.

A *cohort* is the records that arrived before the same release. A record takes part in the first `releases` releases
after its arrival and never again, so its epsilon is that of so many steps of one fixed mechanism: outputs before it
came do not depend on it, and what follows its last release is post-processing. A device with new data therefore never
exhausts its budget, and a record that leaves refunds nothing.

Sound only while `releases`, noise and sampling rate do not depend on the data, and a record that comes again (a replay,
a second import) keeps its cohort: `arrive` is told how many records are new, the caller knows which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ofl_iot.errors import ConfigError, StoreError
from ofl_iot.privacy.accountant import epsilon, noise_multiplier_for
from ofl_iot.privacy.events import Budget, DpSgdSteps


@dataclass(frozen=True)
class Cohort:
    """Records that arrived before the same release."""

    first_release: int
    """The first release they take part in."""
    records: int


@dataclass(frozen=True)
class CohortLedger:
    """Which records may still take part, for one mechanism that every release uses."""

    releases: int
    """Releases that a record takes part in."""
    mechanism: DpSgdSteps
    """Noise, sampling rate and steps of one release."""
    delta: float = 1e-5
    made: int = 0
    """Releases made so far."""
    cohorts: tuple[Cohort, ...] = ()
    """Those whose records may take part, the oldest first."""
    arrived: int = 0
    """Records that ever came."""

    def __post_init__(self) -> None:
        if self.releases < 1 or self.mechanism.steps < 1:
            raise ConfigError("a record takes part in at least one release of at least one step")

    @staticmethod
    def planned(budget: Budget, sampling_rate: float, releases: int, steps: int = 1) -> CohortLedger:
        """Return a ledger whose noise makes `releases` of `steps` each spend a record's whole budget."""
        noise = noise_multiplier_for(budget, sampling_rate, releases * steps)
        return CohortLedger(releases, DpSgdSteps(noise, sampling_rate, steps), budget.delta)

    def arrive(self, records: int) -> CohortLedger:
        """Return the ledger after so many new records came; they join the next release."""
        if records < 0:
            raise ConfigError(f"{records} new records: there cannot be fewer than none")
        if not records:
            return self
        *older, last = self.cohorts or (Cohort(-1, 0),)
        if last.first_release == self.made:
            cohorts = (*older, replace(last, records=last.records + records))
        else:
            cohorts = (*self.cohorts, Cohort(self.made, records))
        return replace(self, cohorts=cohorts, arrived=self.arrived + records)

    @property
    def active(self) -> tuple[Cohort, ...]:
        """The cohorts that take part in the next release."""
        return tuple(cohort for cohort in self.cohorts if cohort.first_release + self.releases > self.made)

    @property
    def active_records(self) -> int:
        """Records that take part in the next release: the newest ones."""
        return sum(cohort.records for cohort in self.active)

    def release(self) -> CohortLedger:
        """Return the ledger after a release by all active cohorts; store it before anything leaves."""
        after = replace(self, made=self.made + 1)
        return replace(after, cohorts=after.active)

    def spent_epsilon(self) -> float:
        """Return the epsilon of the record that took part most often; no record ever exceeds `promised_epsilon`."""
        took_part = min(self.made, self.releases) if self.arrived else 0
        return epsilon([replace(self.mechanism, steps=took_part * self.mechanism.steps)], self.delta)

    def promised_epsilon(self) -> float:
        """Return the epsilon of a record that took part in all of its releases."""
        return epsilon([replace(self.mechanism, steps=self.releases * self.mechanism.steps)], self.delta)

    def to_plain(self) -> dict[str, Any]:
        """Return plain numbers and lists, to be stored."""
        return {
            "releases": self.releases,
            "mechanism": [self.mechanism.noise_multiplier, self.mechanism.sampling_rate, self.mechanism.steps],
            "delta": self.delta,
            "made": self.made,
            "cohorts": [[cohort.first_release, cohort.records] for cohort in self.cohorts],
            "arrived": self.arrived,
        }

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> CohortLedger:
        """Return what `to_plain` gave; StoreError if it cannot be read."""
        try:
            noise, rate, steps = plain["mechanism"]
            return CohortLedger(
                int(plain["releases"]),
                DpSgdSteps(float(noise), float(rate), int(steps)),
                float(plain["delta"]),
                int(plain["made"]),
                tuple(Cohort(int(first), int(records)) for first, records in plain["cohorts"]),
                int(plain["arrived"]),
            )
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"the stored cohort ledger cannot be read ({error}): restore it, do not delete it"
            ) from error
