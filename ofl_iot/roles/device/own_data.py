"""What a device knows of its own records: how many there are, and whether it must look before it trains."""

from __future__ import annotations

REANNOUNCE = 2.0
"""Others are told when the number of records has doubled, or halved, since they were told."""
REPLAN = 1.25
"""The privacy plan is made anew when records have grown by this factor: each step then costs less."""


class OwnData:
    """The records of one device. Those that `live` may grow, shrink and change between two trainings."""

    def __init__(self, records: int, *, live: bool) -> None:
        self.records = records
        self.live = live
        self._looked = False
        self._announced = records
        self._waiting = False

    @property
    def must_look(self) -> bool:
        """Whether a training must first ask what there is to train on."""
        return self.live and not self._looked

    @property
    def announced(self) -> int:
        """Return the number that others are told: at least one, for weights are made of it.

        It is rounded up to a power of two, because the exact number is of the data.
        """
        return 1 << max(0, self._announced - 1).bit_length()

    def found(self, records: int) -> None:
        """Take in what a look found; the next training uses exactly these records."""
        self.records, self._looked = records, records > 0

    def used(self) -> None:
        """The records of the last look are being trained on: look again before the next training."""
        self._looked = False

    @property
    def waiting(self) -> bool:
        """Whether the last look found nothing to train on."""
        return self._waiting

    def begins_waiting(self) -> bool:
        """Return whether this is the first look in a row that found nothing."""
        first, self._waiting = self.records == 0 and not self._waiting, self.records == 0
        return first

    def must_announce(self) -> bool:
        """Return whether others should be told of another number of records, and count it as told."""
        told, now = self.announced, max(1, self.records)
        if told / REANNOUNCE < now < told * REANNOUNCE:
            return False
        self._announced = self.records
        return True

    def rate(self, batch_size: int) -> float:
        """Return the chance of each record to enter a batch."""
        return min(1.0, batch_size / max(1, self.records))

    def needs_other_plan(self, planned_rate: float, batch_size: int) -> bool:
        """Return whether a plan for another sampling rate is too lax, or much too strict, for these records."""
        rate = self.rate(batch_size)
        return self.live and (rate > planned_rate * (1 + 1e-9) or rate * REPLAN < planned_rate)
