"""A payload as its producer gave it, within bounds: of each compression, and of what is none."""

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import pytest

from managed_ledger.pb.pulsar_metadata_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, MessageMetadata
from postdate.broker.scheduled.preview import DECOMPRESSED_BYTES_MAX, preview_of

PLAIN = b"water the plants; " * 20_000
COMPRESS: dict[int, Callable[[Any], Any]] = {
    NONE: bytes,
    LZ4: lambda plain: cramjam.lz4.compress_block(plain, store_size=False),
    ZLIB: zlib.compress,
    ZSTD: cramjam.zstd.compress,
    SNAPPY: cramjam.snappy.compress_raw,
}


def look(
    compression: Any, payload: bytes, size: int, bytes_max: int = 16, **more: Any
) -> tuple[bytes, str | None, int]:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=0, compression=compression, uncompressed_size=size, **more
    )
    return asyncio.run(preview_of(metadata, payload, bytes_max))


@pytest.mark.parametrize("compression", COMPRESS)
def test_the_beginning_of_a_payload_is_shown_as_the_producer_gave_it(compression: Any) -> None:
    packed = bytes(COMPRESS[compression](PLAIN))

    assert look(compression, packed, len(PLAIN)) == (PLAIN[:16], None, len(PLAIN))


@pytest.mark.parametrize("compression", [LZ4, ZLIB, ZSTD, SNAPPY])
@pytest.mark.parametrize("size", [len(PLAIN) - 1, len(PLAIN) + 1, DECOMPRESSED_BYTES_MAX + 1, 2**32 - 1, 0])
def test_a_payload_that_is_not_of_the_size_that_it_claims_stays_compressed(compression: Any, size: int) -> None:
    packed = bytes(COMPRESS[compression](PLAIN))
    name = {LZ4: "LZ4", ZLIB: "ZLIB", ZSTD: "ZSTD", SNAPPY: "SNAPPY"}[compression]

    assert look(compression, packed, size, 10**6) == (packed, name, len(packed))


def test_a_payload_that_is_damaged_or_encrypted_stays_as_it_is() -> None:
    for compression in (LZ4, ZLIB, ZSTD, SNAPPY):
        assert look(compression, b"garbage", 100)[0] == b"garbage"
    packed = zlib.compress(PLAIN)
    keys = [{"key": "k", "value": b"v"}]
    assert look(ZLIB, packed, len(PLAIN), 10**6, encryption_keys=keys) == (packed, "ZLIB", len(packed))


def test_a_small_payload_that_would_be_large_is_not_decompressed_beyond_its_claim() -> None:
    """The header of the compressed data says half a gigabyte, the metadata a kilobyte."""
    bomb = bytes(cramjam.zstd.compress(bytes(2**29)))
    assert len(bomb) < 100_000

    assert look(ZSTD, bomb, 1_024)[1:] == ("ZSTD", len(bomb))
