"""Bucket ids and object keys, on S3: each gives the other, so that nothing has to be looked up.

    bucket id   0 | topic 15 bits | cursor 4 bits | serial 44 bits        (63 bits: a signed long)
    object key  <prefix>/<topic, 4 hex digits>/<cursor, 1 digit>/<serial, 11 digits>

    upload      <prefix>/uploads/<bucket id, 16 hex digits>-<nonce>     empty, while a snapshot comes in parts

A tracker knows a snapshot by its id alone, after a restart too, and must read it in one call: so the key comes from
the id. Snapshots are listed by topic and cursor, of which there may be thousands under one prefix: so the id
begins with short hashes of both, and a list asks for one "folder". Other subscriptions with the same hashes are few,
and the names in the object tell them apart. Names in the key instead would need a search for every id, or a second
object that points to the first, which a crash leaves behind; and they outgrow a key's 1,024 bytes.

The serial is the time in milliseconds since 2020, until 2089, with three random bits. Ids of one process
ascend; two writers of the same subscription rarely choose the same, and a conditional write settles it if they
do. An id of a deleted snapshot comes back only if a clock is put back to the millisecond, one time in eight.
"""

import random
import re
import threading
import time
import zlib
from typing import Final

_CURSOR_BITS: Final = 4
_SERIAL_BITS: Final = 44
_RANDOM_BITS: Final = 3
_TOPIC_HASHES: Final = 2**15
_CURSOR_HASHES: Final = 2**_CURSOR_BITS
_SERIALS: Final = 2**_SERIAL_BITS
_EPOCH_MS: Final = 1_577_836_800_000
_MARKS: Final = "/uploads/"
_MARK_END: Final = re.compile(r"/uploads/([0-7][0-9a-f]{15})-[0-9a-f]+")
_KEY_END: Final = re.compile(r"/([0-7][0-9a-f]{3})/([0-9a-f])/([0-9a-f]{11})")


def object_key(prefix: str, bucket_id: int) -> str:
    """Return the key of a snapshot.

    >>> object_key("postdate/snapshots", 0x1234_5_00000000abc)
    'postdate/snapshots/1234/5/00000000abc'
    """
    assert 0 <= bucket_id < 2**63
    digits = f"{bucket_id:016x}"
    return f"{prefix}/{digits[:4]}/{digits[4]}/{digits[5:]}"


def bucket_id_of(prefix: str, key: str) -> int | None:
    """Return the id of the snapshot under a key, None where the key is no snapshot's.

    >>> hex(bucket_id_of("postdate/snapshots", "postdate/snapshots/1234/5/00000000abc"))
    '0x1234500000000abc'
    """
    match = _KEY_END.fullmatch(key.removeprefix(prefix))
    return None if match is None else int("".join(match.groups()), 16)


def upload_mark(prefix: str, bucket_id: int, nonce: str) -> str:
    """Return the key that says that a snapshot is coming in parts.

    >>> upload_mark("p", 0x1234_5_00000000abc, "77")
    'p/uploads/1234500000000abc-77'
    """
    return f"{prefix}{_MARKS}{bucket_id:016x}-{nonce}"


def marked_id(prefix: str, key: str) -> int | None:
    """Return the id that such a key is about, None where it is another key.

    >>> hex(marked_id("p", "p/uploads/1234500000000abc-77"))
    '0x1234500000000abc'
    """
    match = _MARK_END.fullmatch(key.removeprefix(prefix))
    return None if match is None else int(match[1], 16)


def marks_prefix(prefix: str) -> str:
    """Return what the keys of all such marks begin with."""
    return f"{prefix}{_MARKS}"


def list_prefix(prefix: str, topic_name: str | None, cursor_name: str | None) -> str:
    """Return what the keys of a topic's or a cursor's snapshots begin with; some others' may too.

    >>> list_prefix("p", None, None), list_prefix("p", "t", None), list_prefix("p", "t", "c")
    ('p/', 'p/5aa8/', 'p/5aa8/f/')
    """
    if topic_name is None:
        return f"{prefix}/"
    topic = f"{prefix}/{_hash(topic_name, _TOPIC_HASHES):04x}/"
    return topic if cursor_name is None else f"{topic}{_hash(cursor_name, _CURSOR_HASHES):x}/"


def bucket_id_for(topic_name: str, cursor_name: str, *, serial: int) -> int:
    """Return the id that a serial stands for.

    >>> hex(bucket_id_for("t", "c", serial=0xABC))
    '0x5aa8f00000000abc'
    """
    topic, cursor = _hash(topic_name, _TOPIC_HASHES), _hash(cursor_name, _CURSOR_HASHES)
    return ((topic << _CURSOR_BITS) + cursor) * _SERIALS + serial % _SERIALS


class Serials:
    """Gives serials that ascend, to any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self) -> int:
        """Return a serial of this moment."""
        since_ms = time.time_ns() // 1_000_000 - _EPOCH_MS
        serial = (since_ms << _RANDOM_BITS) + random.getrandbits(_RANDOM_BITS)
        with self._lock:
            self._last = max(serial, self._last + 1)
            return self._last


def _hash(name: str, count: int) -> int:
    # Names may hold characters that are no text to other programs; any bytes do, as long as they are the same every
    # time.
    return zlib.crc32(name.encode("utf-8", "surrogatepass")) % count
