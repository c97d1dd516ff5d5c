"""Bucket keys, and what the errors of the package have in common."""

import inspect

import pytest

from snapshot_storage import errors
from snapshot_storage.bucket_key import LedgerRange, bucket_key, parse_bucket_id, parse_bucket_key
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError, SnapshotStorageError


@pytest.mark.parametrize("ledgers", [(0, 0), (7, 8), (10**12, 2**63 - 1)])
def test_bucket_keys_are_read_as_they_are_written(ledgers: tuple[int, int]) -> None:
    """From one ledger to the largest ids."""
    assert parse_bucket_key(bucket_key(*ledgers)) == LedgerRange(*ledgers)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "#pulsar.internal.delayed.bucket",
        "#pulsar.internal.delayed.bucket_1",
        "#pulsar.internal.delayed.bucket_1_2_3",
        "#pulsar.internal.delayed.bucket_-1_2",
        "#pulsar.internal.delayed.bucket_01_2",
        "#pulsar.internal.delayed.bucket_3_2",
        "#pulsar.internal.delayed.bucket_1_99999999999999999999",
        "#pulsar.internal.delayed.bucket_1_9223372036854775808",
        "#pulsar.internal.delayed.bucket_1_1\u0663",
        "#pulsarXinternal.delayed.bucket_1_2",
        "my.own.property",
    ],
)
def test_other_properties_are_no_buckets(key: str) -> None:
    """Properties of other programs do not stop recovery."""
    assert parse_bucket_key(key) is None


@pytest.mark.parametrize("value", ["", "x", "-1", " 7", "7 ", "\u0663", str(2**63), "9" * 19, "9" * 5_000])
def test_other_values_name_no_snapshot(value: str) -> None:
    """Any text may be there; Python would not even read the longest as a number."""
    assert parse_bucket_id(value) is None


@pytest.mark.parametrize("bucket_id", [0, 7, 2**63 - 1])
def test_the_value_of_a_property_names_a_snapshot(bucket_id: int) -> None:
    assert parse_bucket_id(str(bucket_id)) == bucket_id


def test_every_error_has_the_one_base() -> None:
    """A boundary lets its own base through alone."""
    classes = [
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, BaseException) and value.__module__ == errors.__name__
    ]

    assert len(classes) > 5
    assert all(issubclass(value, SnapshotStorageError) for value in classes)
    assert [value.__name__ for value in classes if value.retriable] == [
        "SnapshotUnavailableError",
        "StorageBusyError",
        "StorageUnavailableError",
    ]


def test_errors_say_which_snapshot() -> None:
    """A log line is enough to look it up."""
    assert str(BucketNotFoundError(7)) == "no snapshot has the bucket id 7"
    assert isinstance(BucketNotFoundError(7), LookupError)
    assert (
        str(SnapshotCorruptedError("torn", bucket_id=7, entry=3)) == "entry 3 of snapshot of bucket 7 is corrupt: torn"
    )
