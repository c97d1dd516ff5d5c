"""The epochs of topics: the number of the last producer with exclusive access, stored durably.

A producer learns its epoch when it gets exclusive access, and shows it whenever it comes back. With an epoch of before
another one had access meanwhile, and the producer is fenced. Without epochs, two producers that ask for exclusive
access with fencing would take it from each other for ever.

Source: PIP-68, "Exclusive Producer".
"""

import struct
from typing import Final

from postdate.broker.topics.policies import RecordStore
from postdate.broker.topics.topic_name import TopicName

EPOCHS_END: Final = 2**63
"""Epochs are smaller, as in Pulsar, where they are signed."""

_RECORD_PREFIX: Final = "topicEpoch "
_EPOCH: Final = struct.Struct("<Q")


class TopicEpochs:
    """The epoch of every topic that has had a producer with exclusive access.

    Args:
        store: The storage of the records.
    """

    def __init__(self, store: RecordStore) -> None:
        self._store = store

    def of(self, topic: TopicName) -> int | None:
        """Return a topic's epoch, None if no producer has had exclusive access."""
        value = self._store.records.get(_record_name(topic))
        return None if value is None else int(_EPOCH.unpack(value)[0])

    async def put(self, topic: TopicName, epoch: int) -> None:
        """Store a topic's epoch; durable on return.

        Raises:
            LedgerWriteError: It could not be stored, and is as before.
        """
        await self._store.put_record(_record_name(topic), _EPOCH.pack(epoch))

    async def forget(self, topic: TopicName) -> None:
        """Remove the epoch of a topic that is being deleted.

        Raises:
            LedgerWriteError: It could not be removed.
        """
        if _record_name(topic) in self._store.records:
            await self._store.put_record(_record_name(topic), None)


def _record_name(topic: TopicName) -> str:
    return f"{_RECORD_PREFIX}{topic}"
