"""Read the backlog of a subscription at a Pulsar, as its only consumer, and acknowledge what is stored here.

The consumer is Exclusive: Pulsar refuses it while others are connected, and gives it what is delayed at once. The
client does not tell when a message is due, so Pulsar's admin port is asked for each message that is an entry of its
own: in batches Pulsar's clients send none that is delayed.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.client import HTTPException, HTTPMessage
from typing import TYPE_CHECKING, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from postdate.command_line.client_tls import client_context
from postdate.moving_in.messages import Found, Left, MovingInError, Waiting, schedulable_ms
from postdate.scheduling.api import topic_path
from postdate.scheduling.clients import new_client

if TYPE_CHECKING:
    import pulsar

IDLE_MS: Final = 5_000
_TIMEOUT_S: Final = 30


class AdminPort:
    """The admin port of a Pulsar.

    Args:
        url: Its address.
        token: The caller's token, None for none.
        trust_certs_file: The authorities to trust for `https`; None for those of the system.

    Raises:
        MovingInError: The address is none.
        ClientTlsError: The file cannot be used.
    """

    def __init__(self, url: str, token: str | None, trust_certs_file: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise MovingInError(f"{url!r} is no address of an admin port: write http://host:port")
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._tls = client_context(trust_certs_file, None, None) if url.startswith("https://") else None

    def subscriptions(self, topic: str) -> list[str]:
        """Return the subscriptions of a topic, also of a partitioned one; raise `MovingInError` where it refuses."""
        found: list[str] = json.loads(self._get(topic, "/subscriptions")[0])
        return found

    def deliver_at_ms(self, topic: str, ledger_id: int, entry_id: int) -> int | None:
        """Return when an entry is due, None where it is not delayed; raise `MovingInError` where it refuses."""
        text = self._get(topic, f"/ledger/{ledger_id}/entry/{entry_id}")[1]["X-Pulsar-deliver-at-time"]
        return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1_000)

    def _get(self, topic: str, rest: str) -> tuple[bytes, HTTPMessage]:
        url = f"{self._url}/admin/v2/persistent{topic_path(topic).removeprefix('/topics')}{rest}"
        try:
            with urlopen(Request(url, headers=self._headers), timeout=_TIMEOUT_S, context=self._tls) as answer:
                return answer.read(), answer.headers
        except HTTPError as error:
            raise MovingInError(f"{url} answers {error.code}: {error.read(300).decode(errors='replace')}") from error
        except (OSError, HTTPException) as error:
            raise MovingInError(f"no Pulsar answers at {self._url}: {error}") from error


@contextmanager
def connected_client(url: str, token: str | None, trust_certs_file: str | None) -> Iterator["pulsar.Client"]:
    """Make a client of a Pulsar; its errors become one of this room.

    Raises:
        MovingInError: The address is none, or Pulsar refuses or does not answer.
    """
    import pulsar

    try:
        client = new_client(url, token=token, tls_files=(trust_certs_file, None, None))
    except (pulsar.PulsarException, ValueError) as error:
        raise MovingInError(f"Pulsar at {url}: {error}") from error
    try:
        yield client
    except pulsar.PulsarException as error:
        raise MovingInError(f"Pulsar at {url}: {error}") from error
    finally:
        client.close()


def backlog(
    client: "pulsar.Client", admin: AdminPort, topic: str, subscription: str, *, idle_ms: int = IDLE_MS
) -> Found:
    """Give the messages of a subscription that are not acknowledged, in the order of each partition.

    Args:
        client: A client of the Pulsar.
        admin: Its admin port.
        topic: The topic; of a partitioned one, all partitions.
        subscription: The subscription.
        idle_ms: After so long without a message the backlog is at its end.

    Raises:
        MovingInError: There is no such topic or subscription, or other consumers are connected.
    """
    import pulsar

    # Subscribing would make it.
    names = admin.subscriptions(topic)
    if subscription not in names:
        raise MovingInError(f"{topic} has no subscription {subscription}; it has {', '.join(sorted(names)) or 'none'}")
    try:
        consumer = client.subscribe(topic, subscription, consumer_type=pulsar.ConsumerType.Exclusive)
    except pulsar.ConsumerBusy as error:
        raise MovingInError(f"stop the consumers of {subscription} first: {error}") from error
    try:
        while True:
            yield _waiting(consumer, admin, consumer.receive(idle_ms))
    except pulsar.Timeout:
        # The consumer closes with its client: the last messages are acknowledged later.
        return


def _waiting(consumer: "pulsar.Consumer", admin: AdminPort, message: "pulsar.Message") -> Waiting | Left:
    topic, found = message.topic_name(), message.message_id()
    # The time of publishing tells apart what two clusters have at one place.
    place = f"{found.ledger_id()}:{found.entry_id()}:{found.batch_index()}@{message.publish_timestamp()}"
    is_alone = found.batch_index() < 0
    deliver_at_ms = admin.deliver_at_ms(topic, found.ledger_id(), found.entry_id()) if is_alone else None
    try:
        deliver_at_ms = None if deliver_at_ms is None else schedulable_ms(deliver_at_ms)
    except ValueError as error:
        return Left(place, str(error))
    return Waiting(
        f"pulsar:{topic.removeprefix('persistent://')}:{place}",
        message.data(),
        deliver_at_ms,
        message.ordering_key() or message.partition_key() or None,
        message.properties(),
        lambda: consumer.acknowledge(message),
    )
