"""The actions that the cores request of the shell."""

from dataclasses import dataclass
from typing import TypeAlias

from dispatcher.core.consumers import ConsumerState
from dispatcher.core.items import Item, Key
from managed_ledger.entries.headers import EntryHeaders


@dataclass(frozen=True, slots=True, eq=False)
class TrackDelayed:
    """Give these entries to the delayed delivery tracker; report those that it refuses as `on_refused`."""

    headers: EntryHeaders


@dataclass(frozen=True, slots=True, eq=False)
class ForgetDelayed:
    """Tell the delayed delivery tracker that these were acknowledged without being given to a consumer."""

    positions: list[Key]


@dataclass(frozen=True, slots=True, eq=False)
class Deliver:
    """Send these entries to the consumer after all that was given to it before. They are its own already."""

    consumer: ConsumerState
    items: list[Item]


@dataclass(frozen=True, slots=True, eq=False)
class NotifyActive:
    """Tell a Failover consumer whether it is the active one."""

    consumer: ConsumerState
    is_active: bool


@dataclass(frozen=True, slots=True, eq=False)
class DropUnsent:
    """Forget entries that were given to the consumer and not sent yet; it is no longer its own."""

    consumer: ConsumerState


@dataclass(frozen=True, slots=True, eq=False)
class TellDelayIgnored:
    """Tell the owner that a message is delivered before its time, as the type does not delay; once for each core."""


Action: TypeAlias = TrackDelayed | ForgetDelayed | Deliver | NotifyActive | DropUnsent | TellDelayIgnored
