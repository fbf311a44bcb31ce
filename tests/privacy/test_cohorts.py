"""Every record pays for what it takes part in, and data that grow never end."""

from __future__ import annotations

from collections import Counter

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError, StoreError
from ofl_iot.privacy.cohorts import CohortLedger
from ofl_iot.privacy.events import Budget, DpSgdSteps

MECHANISM = DpSgdSteps(4.0, 1.0, 2)


@given(st.integers(1, 6), st.lists(st.one_of(st.integers(0, 5), st.just("release")), max_size=60))
def test_no_record_takes_part_in_more_releases_than_it_pays_for(releases, story):
    ledger, born, taken = CohortLedger(releases, MECHANISM), list[int](), Counter[int]()
    for event in story:
        if event == "release":
            active = ledger.active_records
            taken.update(range(len(born) - active, len(born)))  # the newest records
            ledger = ledger.release()
        else:
            ledger = ledger.arrive(event)
            born += [ledger.made] * event
        assert ledger.arrived == len(born)
        assert all(count <= releases for count in taken.values())
        expected = sum(1 for release in born if release + releases > ledger.made)
        assert ledger.active_records == expected
    assert len(ledger.cohorts) <= releases
    assert CohortLedger.from_plain(msgpack.unpackb(msgpack.packb(ledger.to_plain()))) == ledger


def test_epsilon_grows_to_what_is_promised_and_stays_there():
    ledger, spent = CohortLedger.planned(Budget(8.0), 1.0, releases=5, steps=2).arrive(100), []
    for _ in range(12):
        ledger = ledger.arrive(10).release()
        spent.append(ledger.spent_epsilon())
    assert spent == sorted(spent)
    assert spent[4] == spent[-1] == ledger.promised_epsilon() <= 8.0
    assert ledger.promised_epsilon() > 7.99
    assert ledger.active_records > 0, "it goes on with new records"


def test_without_new_records_the_old_ones_retire():
    ledger = CohortLedger(3, MECHANISM).arrive(10)
    for left in (10, 10, 0, 0):
        ledger = ledger.release()
        assert ledger.active_records == left
    assert CohortLedger(3, MECHANISM).release().spent_epsilon() == 0


def test_nonsense_is_refused():
    with pytest.raises(ConfigError):
        CohortLedger(0, MECHANISM)
    with pytest.raises(ConfigError):
        CohortLedger(1, MECHANISM).arrive(-1)
    with pytest.raises(StoreError, match="restore"):
        CohortLedger.from_plain({"releases": 1})
