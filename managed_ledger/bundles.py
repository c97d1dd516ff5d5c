"""Bundles: ranges of the hash of topics' names, each with a log of its own that is open in one process at a time.

    range       0x00000000_0x40000000     as Pulsar writes it: from, to; the last one has its upper bound, too
    hash        CRC32 of a topic's full name in UTF-8, as Pulsar's `NamespaceBundleFactory` has it
    one bundle  DATA/ledgers, DATA/snapshots
    several     DATA/bundles/RANGE/ledgers, DATA/bundles/RANGE/snapshots, and their list in DATA/bundles.json

Unlike Pulsar's, the bundles of a service have topics of all namespaces, so that their number is that of the logs.
"""

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

HASHES: Final = 2**32
_LAST: Final = HASHES - 1
_FORM: Final = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")


class BundleRange(NamedTuple):
    """A range of hashes, ordered by its beginning.

    Attributes:
        begin: The first hash of the range.
        end: The first one after it; 2^32 for the last range, which is written 0xffffffff.
    """

    begin: int
    end: int

    def __str__(self) -> str:
        """The name, as Pulsar writes it.

        >>> str(WHOLE)
        '0x00000000_0xffffffff'
        """
        return f"0x{self.begin:08x}_0x{min(self.end, _LAST):08x}"

    @classmethod
    def parse(cls, text: str) -> "BundleRange":
        """Read a name.

        >>> BundleRange.parse("0x00000000_0x40000000").end == 2**30
        True

        Raises:
            ValueError: It is not the name of a range.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no range of hashes: write it as {WHOLE}")
        begin, end = (int(bound, 16) for bound in found.groups())
        if end <= begin:
            raise ValueError(f"{text!r} is an empty range")
        return cls(begin, HASHES if end == _LAST else end)

    def has(self, topic: str) -> bool:
        """Whether a topic, by its full name, belongs to the range."""
        return self.begin <= hash_of(topic) < self.end


WHOLE: Final = BundleRange(0, HASHES)
"""The range of the one bundle of a folder that is not divided."""


def hash_of(topic: str) -> int:
    """Return the hash of a topic's full name, such as `persistent://public/default/orders-partition-0`."""
    return zlib.crc32(topic.encode())


def even_ranges(count: int) -> tuple[BundleRange, ...]:
    """Divide all hashes evenly.

    >>> [str(one) for one in even_ranges(2)]
    ['0x00000000_0x80000000', '0x80000000_0xffffffff']
    """
    bounds = [HASHES * number // count for number in range(count + 1)]
    return tuple(BundleRange(*pair) for pair in pairwise(bounds))


def bundle_of(topic: str, ranges: Sequence[BundleRange]) -> BundleRange:
    """Return the range of a topic, by its full name; the ranges have each hash once."""
    return next(one for one in ranges if one.has(topic))


def covers_all(ranges: Sequence[BundleRange]) -> bool:
    """Whether each hash is in one range alone."""
    ordered = sorted(ranges)
    bounds = [0, *(one.end for one in ordered)]
    return [one.begin for one in ordered] == bounds[:-1] and bounds[-1] == HASHES
