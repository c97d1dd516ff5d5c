"""Gives the entries of a subscription to its consumers: each at its time, in key order, to one consumer per key.

`make_dispatcher` is the way in. `core/` decides, `reader.py` reads the log and the tracker, `outbox.py` sends what was
assigned, `dispatcher.py` is what the broker calls. The room knows the log, the cursor, the tracker and its consumers by
their interfaces (`ports.py`, `consumer.py`); the wire protocol, authorisation and expiry are the broker's.
"""

from dispatcher.config import DispatcherConfig, SubscriptionType
from dispatcher.consumer import ConsumerHandle, Delivery, KeySharedMode, KeySharedPolicy
from dispatcher.dispatcher import Dispatcher
from dispatcher.factory import make_dispatcher

__all__ = [
    "ConsumerHandle",
    "Delivery",
    "Dispatcher",
    "DispatcherConfig",
    "KeySharedMode",
    "KeySharedPolicy",
    "SubscriptionType",
    "make_dispatcher",
]
