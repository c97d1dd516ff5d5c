"""Any log, divided into any number of bundles, has the same topics, entries, cursors and sequence ids."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from managed_ledger.dividing import divide
from postdate.broker.service.record_homes import home_of_record
from tests.helpers.divided_logs import SHARED, contents, fill_data


@settings(max_examples=15, deadline=None)
@given(
    topics=st.sets(st.integers(0, 10_000), max_size=12),
    seed=st.integers(0, 2**32),
    counts=st.sampled_from([(2,), (3,), (7,), (2, 6), (1, 5), (4, 16)]),
)
def test_a_divided_log_has_all_of_each_topic(topics: set[int], seed: int, counts: tuple[int, ...]) -> None:
    with TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        fill_data(data, sorted(topics), seed=seed)
        before = contents(data)

        for count in counts:
            old = divide(data, count, home_of=home_of_record).old
            if old is not None:
                old.rename(data / f"kept-{count}")

        assert contents(data) == {name: value for name, value in before.items() if name not in SHARED}
