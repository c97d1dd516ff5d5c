"""The publish path of one connection: SENDs of a received chunk in, one write of receipts out.

Appending gives a position at once; the receipt waits until the group commit that holds it is synced. So a chunk's
SENDs share one callback per topic, and receipts leave in SEND order because commits complete in order. Bytes that
are not durable yet are counted, for the connection and for the service, and reading from the client pauses above either
bound: that is the back-pressure.

When an entry cannot be stored, its producer is closed, as in Pulsar. The client asks for the producer again with
growing pauses, and sends the messages without a receipt again. An error answer would make most clients end the whole
connection with its consumers. A message with too long a delay would be sent again for ever: it is refused in the way at
which its client ends it and keeps its producer, or has it closed. Subscriptions are left out here.
"""

import asyncio
import logging
from functools import partial
from typing import Final

from dispatcher.sticky_key import sticky_key_hash
from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.entries.message_metadata import header_flags
from managed_ledger.errors import AppendRefusedError
from managed_ledger.managed_ledger import ManagedLedger
from postdate.broker.protocol import commands, frames
from postdate.broker.service.refusal_log import RefusalLog
from postdate.broker.topics.link import ClientLink
from postdate.broker.topics.publishing_buffer import PublishBuffer
from postdate.broker.topics.topic import Topic

logger = logging.getLogger(__name__)

_CPP_CLIENT: Final = "Pulsar-CPP"
_GO_CLIENTS: Final = ("Pulsar-Go", "Pulsar Go")

RECEIPTS_WAIT_S: Final = 10.0
"""How long the news that a producer is closed waits for a commit, which mostly takes some ms. Clients give a message up
after 30 s."""

_NO_POSITION: Final = (2**64 - 1, 2**64 - 1)
"""-1 and -1, as unsigned fields have them."""

Receipt = tuple[int, int, int, int]
"""producer id, sequence id, ledger id, entry id."""


class Publisher:
    """Appends what a connection's producers send.

    Args:
        link: The connection that receipts are written to.
        pending_bytes_max: Reading pauses while more bytes of this connection wait to become durable.
        buffer: Counts the bytes of all connections.
        refusal_log: Logs the messages that are refused.
    """

    def __init__(
        self, link: ClientLink, *, pending_bytes_max: int, buffer: PublishBuffer, refusal_log: RefusalLog
    ) -> None:
        self._link = link
        self._pending_bytes_max = pending_bytes_max
        self._buffer = buffer
        self._receipts: dict[ManagedLedger, list[Receipt]] = {}
        self._bytes: dict[ManagedLedger, int] = {}
        self._pending_bytes = 0
        self._refusal_log = refusal_log

    def append(self, topic: Topic, send: frames.Send) -> bool:
        """Append one SEND; its receipt is written once `flush` has been called and the entry is durable.

        Returns:
            Whether it was appended; if not, its client is told.
        """
        metadata = send.metadata
        deliver_at_ms = metadata.deliver_at_time if metadata.HasField("deliver_at_time") else NOT_DELAYED
        # As Pulsar: the delay that the client asked for, independent of its clock.
        if topic.delay_ms_max and deliver_at_ms - metadata.publish_time > topic.delay_ms_max:
            self._refuse_delay(topic, send)
            return False
        ledger = topic.ledger
        payload = send.entry
        try:
            position = ledger.append_nowait(
                payload,
                publish_time_ms=metadata.publish_time,
                deliver_at_ms=deliver_at_ms,
                sticky_hash=sticky_key_hash(metadata),
                # The count in SEND may be wrong, so it is used in stats alone, as in Pulsar.
                message_count=max(1, metadata.num_messages_in_batch),
                flags=header_flags(metadata),
            )
        except AppendRefusedError:
            self._link.close_producer(send.producer_id)
            return False
        topic.entries_in_total += 1
        topic.messages_in_total += send.num_messages
        topic.bytes_in_total += len(payload)
        self._receipts_of(ledger).append((send.producer_id, send.sequence_id, *position))
        self._bytes[ledger] += len(payload)
        return True

    def acknowledge_duplicate(self, topic: Topic, send: frames.Send) -> None:
        """Answer a SEND of what is stored already, in its turn, once that is durable; as Pulsar, with no position."""
        self._receipts_of(topic.ledger).append((send.producer_id, send.sequence_id, *_NO_POSITION))

    def _receipts_of(self, ledger: ManagedLedger) -> list[Receipt]:
        receipts = self._receipts.get(ledger)
        if receipts is None:
            receipts = self._receipts[ledger] = []
            self._bytes[ledger] = 0
        return receipts

    def flush(self) -> None:
        """Answer everything appended since the last call, as soon as it is durable."""
        if not self._receipts:
            return
        for ledger, receipts in self._receipts.items():
            size = self._bytes[ledger]
            self._pending_bytes += size
            self._buffer.add(self._link, size)
            ledger.committed().add_done_callback(partial(self._on_committed, receipts, size))
        self._receipts, self._bytes = {}, {}
        if self._pending_bytes > self._pending_bytes_max:
            self._link.pause_reading("the disk is behind")

    def tell_closed(self, ledger: ManagedLedger, producer_id: int) -> None:
        """Tell the client that a producer is closed, after the receipts of all entries appended so far.

        A client that hears of it earlier sends those messages again, and they are stored twice. Where their commit
        fails or takes too long, it is to send them again.
        """
        self.flush()
        committed = ledger.committed()
        timer = asyncio.get_running_loop().call_later(RECEIPTS_WAIT_S, committed.cancel)

        def tell(_: "asyncio.Future[None]") -> None:
            timer.cancel()
            # Either way; asyncio would log a failure that is never looked at.
            _is_durable(committed)
            self._link.write(commands.close_producer(producer_id))

        committed.add_done_callback(tell)

    def _on_committed(self, receipts: list[Receipt], size: int, committed: "asyncio.Future[None]") -> None:
        self._pending_bytes -= size
        self._buffer.remove(size)
        if self._pending_bytes <= self._pending_bytes_max // 2:
            self._link.resume_reading("the disk is behind")
        # After a failed commit, the topic has closed its producers.
        if _is_durable(committed):
            self._link.write(frames.send_receipts(receipts))

    def _after_receipts(self, ledger: ManagedLedger, error: bytes) -> None:
        """Write an error in its turn: clients take it for the answer to the oldest message that waits for one."""
        self.flush()

        def write(committed: "asyncio.Future[None]") -> None:
            if _is_durable(committed):
                self._link.write(error)

        ledger.committed().add_done_callback(write)

    def _refuse_delay(self, topic: Topic, send: frames.Send) -> None:
        reason = f"Exceeds max allowed delivery delay of {topic.delay_ms_max} milliseconds"
        self._log_refusal(topic, send, reason)
        if self._link.client_version.startswith(_GO_CLIENTS):
            # At this error a Go client hears nothing more of its producer, receipts included, and any other has it end
            # the connection. So the producer is closed; of the answers to its return, one alone has the client fail the
            # messages without a receipt, with the reason, and come again.
            self._link.close_producer(send.producer_id, refusal=reason)
            return
        # Of all errors this is the only one that a C++ client, and so the Python and the Node one, takes for the end of
        # the message: after any other it connects again and sends it again, ten times a second, for ever.
        name = "ChecksumError" if self._link.client_version.startswith(_CPP_CLIENT) else "NotAllowedError"
        error = commands.send_error(send.producer_id, send.sequence_id, error=name, message=reason)
        self._after_receipts(topic.ledger, error)

    def _log_refusal(self, topic: Topic, send: frames.Send, reason: str) -> None:
        """Log a refusal, once a minute for each producer."""
        text = f"refused a message of producer {send.metadata.producer_name} of {topic.name}: {reason}"
        self._refusal_log.log(logger, logging.INFO, (topic.name, send.metadata.producer_name), text)


def _is_durable(committed: "asyncio.Future[None]") -> bool:
    return not committed.cancelled() and committed.exception() is None
