"""The entries that one consumer was given and that are not sent yet; reads payloads and writes to the connection.

Entries leave the outbox only when they are written, with two exceptions. Damaged ones are put aside. Those whose read
failed for another reason wait for another try, as do later ones of their slots where order is kept; all others go on.

A connection that is not writable tells when it is. It counts what is being read, since the outboxes of one connection
read at once.
An entry that stops being the consumer's own before it is written (it left, asked for redelivery, or the entry was
acknowledged) is not written, and its permits go back. Any other exception is a defect, which ends the dispatcher:
between charging an entry and writing it there is no other way out.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import compress, islice, repeat
from typing import Any, Final

from pyroaring import BitMap

from dispatcher.config import DispatcherConfig
from dispatcher.consumer import ConsumerHandle, Delivery
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.items import BYTES, ENTRY, LEDGER, SLOT, Item, Key, position_of, position_of_item
from dispatcher.core.subscription_core import SubscriptionCore
from dispatcher.ports import Log
from managed_ledger.errors import EntriesDamagedError, EntriesUnreadableError
from snapshot_storage.backoff import Backoff

_new_delivery: Callable[[Iterable[Any]], Delivery] = partial(tuple.__new__, Delivery)
"""As the constructor that NamedTuple writes, in half the time, for `map`."""

logger = logging.getLogger(__name__)

ASKED_AGAIN_AFTER_S: Final = 1.0
"""A connection that takes bytes again tells each of its consumers; it is asked after so long all the same. Every 10 ms,
as Pulsar does, a thousand consumers that wait for one client would take a core."""

ALLOWED_AGAIN_AFTER_S: Final = 0.1
"""How long it waits where deliveries are not allowed, before it asks again."""


class Outbox:
    """The way of one consumer's entries from the decision to the connection.

    Args:
        handle: Where to write.
        consumer: The consumer of the entries.
        core: Says whether an entry is still the consumer's own.
        log: Where payloads are.
        config: Limits and waits.
        may_deliver: Whether messages may be sent now; asked before each read, and before each write.
        on_refused: Told of entries that are not written, so their permits go back.
        on_missing: Told of positions that the log no longer has.
        on_damage: Told of damaged entries, and puts them aside.
        on_sent: Told of entries that were written, and of the bytes of their payloads.
        on_defect: Told of an exception that must not be.
    """

    __slots__ = (
        "_again_s",
        "_config",
        "_core",
        "_drops",
        "_is_closed",
        "_items",
        "_log",
        "_may_deliver",
        "_on_damage",
        "_on_defect",
        "_on_missing",
        "_on_refused",
        "_on_sent",
        "_pump",
        "_unread",
        "_woken",
        "consumer",
        "handle",
    )

    def __init__(
        self,
        handle: ConsumerHandle,
        consumer: ConsumerState,
        core: SubscriptionCore,
        log: Log,
        config: DispatcherConfig,
        may_deliver: Callable[[], bool],
        on_refused: Callable[[ConsumerState, list[Item]], None],
        on_missing: Callable[[list[Key]], None],
        on_damage: Callable[[EntriesDamagedError], None],
        on_sent: Callable[[ConsumerState, list[Item], int], None],
        on_defect: Callable[[Exception], None],
    ) -> None:
        self.handle = handle
        self.consumer = consumer
        self._core = core
        self._log = log
        self._config = config
        self._may_deliver = may_deliver
        self._on_refused = on_refused
        self._on_missing = on_missing
        self._on_damage = on_damage
        self._on_sent = on_sent
        self._on_defect = on_defect
        self._items: deque[Item] | tuple[()] = ()
        """A queue while there is something to send; an empty one takes 600 bytes."""
        self._unread: list[Item] = []
        """Entries whose read failed, and those that must not overtake them; in order."""
        self._again_s = 0.0
        """When they are read again."""
        self._drops = 0
        self._pump: asyncio.Task[None] | None = None
        self._woken: asyncio.Event | None = None
        """While it waits for the connection, or to read again."""
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._items) + len(self._unread)

    def put(self, items: list[Item]) -> None:
        """Send these after all others; none once it is closed, as those before them were dropped."""
        if self._is_closed:
            return
        if self._unread:
            items = self._behind_unread(items, frozenset())
        if not self._items:
            self._items = deque()
        assert isinstance(self._items, deque)
        self._items.extend(items)
        if self._unread:
            self.wake()
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._run())

    def positions(self) -> set[Key]:
        """Return the entries that are not sent yet."""
        return {position_of(item) for item in (*self._unread, *self._items)}

    def drop(self) -> list[Item]:
        """Send none of these entries; return it."""
        unsent = [*self._unread, *self._items]
        self._items, self._unread = (), []
        self._drops += 1
        self.wake()
        return unsent

    def wake(self) -> None:
        """Look again whether there is something to send and the connection takes it."""
        if self._woken is not None:
            self._woken.set()

    def close(self) -> None:
        """Send nothing any more, from this call on; `closed` waits for the task."""
        self._is_closed = True
        self.drop()
        if self._pump is not None:
            self._pump.cancel()

    async def closed(self) -> None:
        """Wait until nothing runs any more."""
        if self._pump is not None:
            await asyncio.gather(self._pump, return_exceptions=True)

    async def _run(self) -> None:
        failures = Backoff(
            min_ms=self._config.read_failure_backoff_initial_ms, max_ms=self._config.read_failure_backoff_max_ms
        )
        try:
            while len(self):
                await self._until_allowed()
                await self._until_writable()
                if self._unread and self._now_s() >= self._again_s:
                    self._items, self._unread = deque([*self._unread, *self._items]), []
                if not self._items:
                    await self._until_woken(self._again_s - self._now_s())
                    continue
                is_first = not self._unread
                failure = await self._send_batch()
                if failure is not None and is_first:
                    # Other reads that fail until then are tried again together with this one.
                    wait_s = failures.next_seconds()
                    self._again_s = self._now_s() + wait_s
                    logger.error(
                        "cannot read for consumer %r; again in %.1f s", self.handle.name, wait_s, exc_info=failure
                    )
                elif not self._unread:
                    failures.reset()
        except Exception as defect:
            # A supervisor: entries that are charged and not sent must not stay so.
            self._on_defect(defect)
        finally:
            self._pump = None
            if not self._items:
                self._items = ()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _until_writable(self) -> None:
        while not self.handle.is_writable and len(self):
            await self._until_woken(ASKED_AGAIN_AFTER_S)

    async def _until_allowed(self) -> None:
        while len(self) and not self._may_deliver():
            await self._until_woken(ALLOWED_AGAIN_AFTER_S)

    async def _until_woken(self, seconds: float) -> None:
        self._woken = asyncio.Event()
        with suppress(TimeoutError):
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            finally:
                self._woken = None

    async def _send_batch(self) -> Exception | None:
        """Send what is next; return why the log does not give all of it, unless that is for damage."""
        batch, size = self._next_batch()
        drops = self._drops
        # While nothing is read, the connection counts nothing of this outbox: the log of its other consumers may be
        # another.
        self.handle.begin_read(size)
        try:
            payloads = await self._log.read_payloads([item[LEDGER] for item in batch], [item[ENTRY] for item in batch])
        except EntriesDamagedError as damage:
            if drops == self._drops:
                self._leave_out(damage)
        except EntriesUnreadableError as failure:
            if drops == self._drops:
                self._set_apart([item for item in batch if _is_among(failure.entries, item)])
            return failure
        except Exception as failure:
            # A supervisor: any failure of a read. The consumer must get these entries.
            if drops == self._drops:
                self._set_apart(batch)
            return failure
        else:
            # The read may have taken long, as in a process that was stopped meanwhile: it is repeated.
            if drops == self._drops and self._may_deliver():
                self._write(batch, payloads)
        finally:
            self.handle.end_read(size)
        return None

    def _leave_out(self, damage: EntriesDamagedError) -> None:
        """Put damaged entries aside; those behind them are next."""
        damaged = [item for item in self._items if _is_among(damage.entries, item)]
        self._items = deque(item for item in self._items if not _is_among(damage.entries, item))
        self._on_refused(self.consumer, damaged)
        self._on_damage(damage)

    def _set_apart(self, items: list[Item]) -> None:
        """Try these again later, and send what may overtake them."""
        self._items = deque(self._behind_unread(self._items, set(map(position_of, items))))

    def _behind_unread(self, items: Iterable[Item], unread: Collection[Key]) -> list[Item]:
        """Return the items that may be sent now, and keep the others: the unread ones, and what is behind any such."""
        keeps_order = self._core.keeps_order
        slots = {item[SLOT] for item in self._unread if keeps_order(item[SLOT])}
        free = []
        for item in items:
            slot = item[SLOT]
            if slot not in slots and position_of(item) not in unread:
                free.append(item)
                continue
            self._unread.append(item)
            if keeps_order(slot):
                slots.add(slot)
        return free

    def _write(self, batch: list[Item], payloads: list[bytes | None]) -> None:
        assert isinstance(self._items, deque)
        for _ in batch:
            self._items.popleft()
        sent, deliveries = self._deliveries(batch, payloads)
        if sent:
            self.handle.send_messages(deliveries)
            self._on_sent(self.consumer, sent, sum([len(delivery[3]) for delivery in deliveries]))

    def _next_batch(self) -> tuple[list[Item], int]:
        """Take what fits into one read, at least one entry; return its bytes too."""
        batch = list(islice(self._items, self._config.read_batch_entries_max))
        size = sum([item[BYTES] for item in batch])
        while size > self._config.read_bytes_max and len(batch) > 1:
            size -= batch.pop()[BYTES]
        return batch, size

    def _deliveries(self, batch: list[Item], payloads: list[bytes | None]) -> tuple[list[Item], list[Delivery]]:
        """Return the entries that are still the consumer's own and in the log, and the deliveries of them."""
        core, positions = self._core, list(map(position_of_item, batch))
        counts = map(core.redelivery_counts.get, positions, repeat(0)) if core.redelivery_counts else repeat(0)
        ack_sets = map(core.ack_sets.get, positions, repeat(())) if core.ack_sets else repeat(())
        ledger_ids, entry_ids = zip(*positions, strict=True)
        # `repeat` has no end.
        deliveries = list(map(_new_delivery, zip(ledger_ids, entry_ids, counts, payloads, ack_sets, strict=False)))
        are_pending = core.are_pending(self.consumer, positions)
        if all(are_pending) and None not in payloads:
            return batch, deliveries
        is_sent = [is_own and payload is not None for is_own, payload in zip(are_pending, payloads, strict=True)]
        self._on_refused(self.consumer, [item for item, is_one in zip(batch, is_sent, strict=True) if not is_one])
        missing = [
            position
            for position, is_own, payload in zip(positions, are_pending, payloads, strict=True)
            if is_own and payload is None
        ]
        if missing:
            self._on_missing(missing)
        return list(compress(batch, is_sent)), list(compress(deliveries, is_sent))


def _is_among(entries: Mapping[int, BitMap], item: Item) -> bool:
    return item[ENTRY] in entries.get(item[LEDGER], ())
