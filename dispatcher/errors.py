"""The refusals of a dispatcher, under one base.

Every error says which subscription's consumer asked for what. The broker maps them to the protocol's server errors:
the class names are those of Pulsar's `BrokerServiceException` children where one exists. Storage errors are not here:
a read that fails is retried by the shell and never reaches a caller.
"""


class DispatcherError(Exception):
    """Base of everything that a dispatcher raises."""


class DispatcherClosedError(DispatcherError):
    """The dispatcher is closed and takes no more consumers."""


class ConsumerBusyError(DispatcherError):
    """The subscription type allows no further consumer, or none with this policy."""


class ConsumerAssignError(DispatcherError):
    """The selector could not give the consumer a range of hashes."""


class RangeConflictError(ConsumerAssignError):
    """A sticky range overlaps one of another consumer, which is named by `consumer_name`.

    Args:
        message: The requested ranges, and the ranges that overlap with them.
        consumer_name: The consumer that holds the range. The broker asks that one's client for a sign of life and,
            without one, removes it and asks the dispatcher once more.
    """

    def __init__(self, message: str, *, consumer_name: str) -> None:
        super().__init__(message)
        self.consumer_name = consumer_name


class CumulativeAckRefusedError(DispatcherError):
    """Cumulative acknowledgement is not legal on a shared subscription."""
