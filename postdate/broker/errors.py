"""The errors of the service, with the names that Pulsar clients know them by.

`server_error` is the name in the protocol's `ServerError` enumeration: the client turns it into an exception of
its own. A consumer that cannot be added is refused with the dispatcher's errors, also where the limit is the service's.
Errors of the wire itself (bad frames) live with the wire, in `postdate.broker.protocol`.
"""

from typing import ClassVar


class BrokerError(Exception):
    """Base of every error that the service answers to a client."""

    server_error: ClassVar[str] = "UnknownError"


class InvalidTopicNameError(BrokerError):
    """The topic name cannot be parsed."""

    server_error = "InvalidTopicName"


class AuthorizationError(BrokerError):
    """The client's role does not allow this."""

    server_error = "AuthorizationError"


class TopicNotFoundError(BrokerError):
    """The topic does not exist, and the client asks not to create it."""

    server_error = "TopicNotFound"


class SubscriptionNotFoundError(BrokerError):
    """The subscription does not exist."""

    server_error = "SubscriptionNotFound"


class ProducerBusyError(BrokerError):
    """Another live producer of the topic has this name."""

    server_error = "ProducerBusy"


class MessageRefusedError(BrokerError):
    """A message of this producer was refused; Go clients fail what they have sent without a receipt, and go on."""

    server_error = "ProducerBlockedQuotaExceededException"


class ProducerFencedError(BrokerError):
    """The producer asks for exclusive access, or another producer has it."""

    server_error = "ProducerFenced"


class NotAllowedError(BrokerError):
    """The request contradicts the service's limits or the subscription's type."""

    server_error = "NotAllowedError"


class TopicClosedError(BrokerError):
    """The topic was closed while the request was under way; clients retry by themselves."""

    server_error = "ServiceNotReady"


class NotServedError(BrokerError):
    """The topic's bundle is not open in this process; clients look it up again by themselves."""

    server_error = "ServiceNotReady"


class SnapshotsLeftError(BrokerError):
    """Unneeded snapshots could not be deleted."""


class NoRoomError(BrokerError):
    """The log has no room for entries now; clients retry by themselves."""

    server_error = "ServiceNotReady"


class MetadataError(BrokerError):
    """The subscription's state does not permit the request."""

    server_error = "MetadataError"


class ServiceStartError(Exception):
    """The service cannot start; the text says why and what to do."""
