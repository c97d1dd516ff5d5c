"""The mark of a stream's batch: its meaning for batches before and after, for other streams, and for odd options."""

import pytest

from postdate.pipeline.publishing.batch_mark import BatchMark
from tracker.bucket_properties import read_properties


def test_a_mark_stands_for_its_batch_and_those_before_of_its_own_stream() -> None:
    """It says nothing of another stream, and a mark that was changed by hand says nothing."""
    properties = {"#pulsar.internal.delayed.bucket_1_5": "7", **BatchMark("q", 10).properties}

    assert [BatchMark("q", batch_id).is_in(properties) for batch_id in (9, 10, 11)] == [True, True, False]
    assert not BatchMark("other", 0).is_in(properties)
    assert not BatchMark("q", 0).is_in(dict.fromkeys(BatchMark("q", 1).properties, "x"))


def test_a_mark_is_no_bucket() -> None:
    """A tracker that recovers neither takes it for one nor reports it."""
    found = read_properties(BatchMark("q", 10).properties)

    assert (found.buckets, found.malformed) == ([], {})


def test_options_name_a_batch_or_none() -> None:
    """Half of a name would write a batch twice."""
    assert BatchMark.of_options({}) is None
    assert BatchMark.of_options({"query_id": "q", "batch_id": "0"}) == BatchMark("q", 0)
    for options in ({"query_id": "q"}, {"batch_id": "1"}, {"query_id": "q", "batch_id": "-1"}):
        with pytest.raises(ValueError, match="query_id and batch_id go together"):
            BatchMark.of_options(options)
