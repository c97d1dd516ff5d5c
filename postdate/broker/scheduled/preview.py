"""The beginning of a payload, as the producer gave it: for somebody who looks at one message.

A payload comes from a stranger. What is made of it here is never more than `DECOMPRESSED_BYTES_MAX`, whatever its
metadata or its own header say, so a small payload that would become gigabytes costs no more than any other.
"""

import asyncio
import zlib
from collections.abc import Callable
from typing import Any, Final

from managed_ledger.pb.pulsar_metadata_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, CompressionType, MessageMetadata

DECOMPRESSED_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest payload that is decompressed: LZ4 and Snappy give nothing before they have all of it."""


def _decompressors() -> dict[int, Callable[[Any, Any], int]]:
    try:
        import cramjam
    except ImportError:
        return {}
    return {
        LZ4: cramjam.lz4.decompress_block_into,
        SNAPPY: cramjam.snappy.decompress_raw_into,
        ZSTD: cramjam.zstd.decompress_into,
    }


_DECOMPRESSORS: Final = _decompressors()


async def preview_of(metadata: MessageMetadata, payload: bytes, bytes_max: int) -> tuple[bytes, str | None, int]:
    """Return the first bytes of a payload, the compression that it still has, and the size of all of it.

    It stays compressed where it is encrypted, too large or no such data, or where the library is not installed.

    Args:
        metadata: Its message's.
        payload: The payload as it is stored.
        bytes_max: How many bytes are wanted.
    """
    if metadata.compression != NONE and not metadata.encryption_keys:
        plain = await asyncio.to_thread(_decompressed, metadata, payload)
        if plain is not None:
            return plain[:bytes_max], None, len(plain)
    name = None if metadata.compression == NONE else CompressionType.Name(metadata.compression)
    return payload[:bytes_max], name, len(payload)


def _decompressed(metadata: MessageMetadata, payload: bytes) -> bytes | None:
    """Return all of a payload, None where that cannot be."""
    size = metadata.uncompressed_size
    if not 0 < size <= DECOMPRESSED_BYTES_MAX:
        return None
    if metadata.compression == ZLIB:
        try:
            plain = zlib.decompressobj().decompress(payload, size + 1)
        except zlib.error:
            return None
        return plain if len(plain) == size else None
    decompress = _DECOMPRESSORS.get(metadata.compression)
    if decompress is None:
        return None
    plain_into = bytearray(size)
    try:
        written = decompress(payload, plain_into)
    except Exception:  # Its errors have no base class of their own.
        return None
    return bytes(plain_into) if written == size else None
