"""Translate an ACK for the dispatcher: message ids become positions and batch words, or a refusal.

ACK and SEND are the most frequent commands; an ACK has up to a thousand ids. The protocol's ids are unsigned numbers of
64 bits, and positions are smaller. An id that cannot be a position is refused here, so that it does not keep the others
of its command from being acknowledged.
"""

import logging
from typing import Final

from dispatcher.errors import CumulativeAckRefusedError
from managed_ledger.positions.position import Position
from postdate.broker.protocol.commands import signed
from postdate.broker.protocol.pb.pulsar_api_pb2 import CommandAck
from postdate.broker.topics.consumer import Consumer
from postdate.broker.topics.topic import Topic

logger = logging.getLogger(__name__)

LEDGER_IDS_END: Final = 2**63
ENTRY_IDS_END: Final = 2**32


def acknowledge(consumer: Consumer, topic: Topic, ack: CommandAck) -> str | None:
    """Pass an ACK on to the dispatcher; give the reason when it is refused."""
    dispatcher = topic.dispatcher_of(consumer)
    if dispatcher is None or not ack.message_id:
        return None
    if ack.ack_type == CommandAck.Cumulative:
        last = ack.message_id[0]
        # In the middle of a batch the client acknowledges the entry before the batch, which is -1 before the first
        # entry.
        position = Position(signed(last.ledgerId), signed(last.entryId))
        try:
            dispatcher.acknowledge_cumulative(consumer, position, ack_set=tuple(last.ack_set))
        except CumulativeAckRefusedError as error:
            logger.warning("cumulative acknowledgement of consumer %s refused: %s", consumer.name, error)
            return str(error)
        return None
    positions = [
        (ledger_id, entry_id)
        for message_id in ack.message_id
        if (ledger_id := message_id.ledgerId) < LEDGER_IDS_END and (entry_id := message_id.entryId) < ENTRY_IDS_END
    ]
    ack_sets = {
        (message_id.ledgerId, message_id.entryId): tuple(message_id.ack_set)
        for message_id in ack.message_id
        if message_id.ack_set
    }
    dispatcher.acknowledge(consumer, positions, ack_sets)
    return None
