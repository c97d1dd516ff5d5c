"""Blocks of headers or payloads in memory, least recently used out first, within a number of bytes.

Blocks are found by any entry they cover: per ledger the first entries of its cached blocks are kept sorted. Fresh
commits arrive in order, so that list grows at its end. Small ones are joined to the block before them: ten commits of a
message each are one block and not ten. Belongs to one event loop.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import Generic, Protocol, Self, TypeVar


class CachedBlock(Protocol):
    """Consecutive entries of one ledger."""

    first: int
    """The first entry id."""
    end: int
    """The entry id after the last one."""
    cost: int
    """Bytes of memory."""

    def joined(self, following: Self) -> Self | None:
        """Return one block of this one and the next, None where they are not joined."""


Block = TypeVar("Block", bound=CachedBlock)


class BlockCache(Generic[Block]):
    """The blocks, and the order of their use."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, ledger_id: int, entry_id: int) -> Block | None:
        """The block that covers an entry.

        Runtime complexity: O(log b) for b cached blocks of the ledger.
        """
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return None
        index = bisect_right(firsts, entry_id) - 1
        if index < 0:
            return None
        key = (ledger_id, firsts[index])
        block = self._blocks[key]
        if entry_id >= block.end:
            return None
        self._blocks.move_to_end(key)
        return block

    def next_first(self, ledger_id: int, entry_id: int) -> int | None:
        """The first entry of the next cached block behind an entry, which says how far a gap reaches."""
        firsts = self._firsts.get(ledger_id, ())
        index = bisect_right(firsts, entry_id)
        return firsts[index] if index < len(firsts) else None

    def add(self, ledger_id: int, block: Block) -> None:
        """Keep a block, and drop the longest unused ones where there is no room."""
        if block.cost > self.bytes_max:
            return
        key = (ledger_id, block.first)
        known = self._blocks.pop(key, None)
        if known is None:
            insort(self._firsts.setdefault(ledger_id, []), block.first)
        else:
            self.bytes_used -= known.cost
        self._keep(key, block)

    def add_next(self, ledger_id: int, block: Block) -> None:
        """Keep a block that was committed last, joined to the one before it where both are small."""
        firsts = self._firsts.get(ledger_id)
        last = None if firsts is None else self._blocks[ledger_id, firsts[-1]]
        joined = last.joined(block) if last is not None and last.end == block.first else None
        if last is None or joined is None:
            self.add(ledger_id, block)
            return
        key = (ledger_id, last.first)
        del self._blocks[key]
        self.bytes_used -= last.cost
        self._keep(key, joined)

    def _keep(self, key: tuple[int, int], block: Block) -> None:
        self._blocks[key] = block
        self.bytes_used += block.cost
        while self.bytes_used > self.bytes_max:
            self._drop_oldest()

    def drop_ledger(self, ledger_id: int) -> None:
        """Forget every block of a ledger."""
        for first in self._firsts.pop(ledger_id, ()):
            self.bytes_used -= self._blocks.pop((ledger_id, first)).cost

    def _drop_oldest(self) -> None:
        (ledger_id, first), block = self._blocks.popitem(last=False)
        self.bytes_used -= block.cost
        firsts = self._firsts[ledger_id]
        del firsts[bisect_right(firsts, first) - 1]
        if not firsts:
            del self._firsts[ledger_id]
