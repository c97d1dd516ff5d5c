"""From a sticky key to its slot: Murmur3, and the range that a selector reduces it to.

    key bytes --Murmur3 x86 32, seed 0, top bit cleared--> hash (31 bits, kept in the log) --range--> slot

The hash is stored once per entry. The slot depends on the selector: consistent hashing reduces to [1, 65535], the two
others to [0, 65535] with 0 moved to 1, because slot 0 means "not set" and belongs to no key. Pulsar's documentation
says `hash mod 65536 + 1`; its code, and the golden vectors, say what is written here. Several keys share a slot, and
the slot, not the key, is what is ordered, fenced and owned.
"""

from typing import Final, NamedTuple

import mmh3
import numpy as np
from numpy.typing import NDArray

SLOTS_END: Final = 65_537
"""One past the largest slot that any selector publishes; the size of every table by slot."""

SLOT_NOT_SET: Final = 0

_HASH_MASK = 0x7FFF_FFFF


def sticky_hash(key: bytes) -> int:
    """Return the 31-bit hash of a sticky key, as Pulsar's `makeHash`.

    >>> sticky_hash(b"key1")
    462881061
    """
    return mmh3.hash(key, 0, signed=False) & _HASH_MASK


class HashRange(NamedTuple):
    """The slots that a selector hands out, both ends inclusive."""

    first: int
    last: int

    def slot(self, key_hash: int) -> int:
        """Return the slot of one 31-bit hash.

        >>> CONSISTENT_HASHING_RANGE.slot(sticky_hash(b"key1"))
        7357
        >>> FULL_RANGE.slot(sticky_hash(b"key1"))
        293
        """
        slot = key_hash % (self.last - self.first + 1) + self.first
        return slot if slot != SLOT_NOT_SET else 1

    def slots(self, key_hashes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the slots of many hashes at once."""
        # The remainder of a 31-bit number and the sum both fit 32 bits.
        slots = key_hashes % np.int32(self.last - self.first + 1) + np.int32(self.first)
        if self.first == SLOT_NOT_SET:
            slots[slots == SLOT_NOT_SET] = 1
        return slots


CONSISTENT_HASHING_RANGE: Final = HashRange(1, 65_535)
FULL_RANGE: Final = HashRange(0, 65_535)
