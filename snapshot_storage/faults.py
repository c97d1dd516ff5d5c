"""Faults of a storage: a seed decides which call goes wrong and how, so that every run can be repeated.

The n-th call of one operation has its own random numbers, made of seed, operation and n. So its fault does not depend
on how calls of other operations are interleaved with it.

Pure decisions: `snapshot_storage.testing` carries them out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final


class Operation(StrEnum):
    """The operations of a storage."""

    CREATE = "create"
    HEAD = "head"
    METADATA = "metadata"
    SEGMENT = "segment"
    LENGTH = "length"
    DELETE = "delete"
    LIST = "list"


class Fault(StrEnum):
    """How a call can go wrong."""

    LATENCY = "latency"
    """The answer is right, and late."""
    FAILURE_BEFORE = "failure before the effect"
    FAILURE_AFTER = "failure after the effect"
    """The caller is told at once that it failed, though it did not."""
    TIMEOUT_AFTER = "timeout after the effect"
    """As a failure after the effect, and it takes its time."""
    HANG = "hang"
    """Nothing happens, and no answer comes until the call is cancelled."""
    TORN_READ = "torn read"
    """An entry comes without its end."""
    FLIPPED_BIT = "flipped bit"
    LOST_DELETE = "lost delete"
    """Reported as done, and not done."""
    UNREADABLE = "unreadable for ever"
    """The snapshot is stored, and no read of it ever succeeds; all others do."""


READS: Final = frozenset({Operation.HEAD, Operation.METADATA, Operation.SEGMENT})
DAMAGES: Final = frozenset({Fault.TORN_READ, Fault.FLIPPED_BIT})

_ONLY_OF: Final = {
    Fault.TORN_READ: READS,
    Fault.FLIPPED_BIT: READS,
    Fault.LOST_DELETE: frozenset({Operation.DELETE}),
    Fault.UNREADABLE: frozenset({Operation.CREATE}),
}


def can_happen(fault: Fault, operation: Operation) -> bool:
    """Whether an operation can go wrong in this way."""
    return operation in _ONLY_OF.get(fault, Operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """The faults, as a function of an operation and of how often it was called before.

    >>> plan = FaultPlan(seed=3, rate=0.2, faults=(Fault.HANG,))
    >>> [number for number in range(20) if plan.fault(Operation.LIST, number)]
    [8, 13, 16, 18]
    >>> FaultPlan(at={(Operation.CREATE, 2): Fault.FAILURE_AFTER}).fault(Operation.CREATE, 2)
    <Fault.FAILURE_AFTER: 'failure after the effect'>
    """

    seed: int = 0
    rate: float = 0.0
    """The share of calls that go wrong, 0 to 1."""
    faults: tuple[Fault, ...] = tuple(Fault)
    """The faults that may happen to them, each as often as the others."""
    operations: frozenset[Operation] = frozenset(Operation)
    """The operations that they may happen to."""
    at: Mapping[tuple[Operation, int], Fault] = field(default_factory=dict)
    """The fault of the n-th call of an operation, counted from 0, instead of the seed's."""
    latency_ms_max: int = 100
    timeout_ms: int = 1_000

    def __post_init__(self) -> None:
        assert 0 <= self.rate <= 1
        assert all(can_happen(fault, operation) for (operation, _), fault in self.at.items())

    def fault(self, operation: Operation, number: int) -> Fault | None:
        """Return the fault of the n-th call of an operation, counted from 0; None if nothing does."""
        if (operation, number) in self.at:
            return self.at[operation, number]
        if not self.rate or operation not in self.operations:
            return None
        possible = [fault for fault in self.faults if can_happen(fault, operation)]
        chance = self.chance(operation, number)
        return chance.choice(possible) if possible and chance.random() < self.rate else None

    def chance(self, operation: Operation, number: int, purpose: str = "") -> Random:
        """Return the random numbers of one call, the same ones each time."""
        return Random(f"{self.seed} {operation} {number} {purpose}")


NO_FAULTS: Final = FaultPlan()


def damaged(payload: bytes, fault: Fault, chance: Random) -> bytes:
    """Return an entry without its end, or with one bit flipped; an empty entry has nothing to lose."""
    assert fault in DAMAGES
    if not payload:
        return payload
    if fault is Fault.TORN_READ:
        return payload[: chance.randrange(len(payload))]
    bit = chance.randrange(8 * len(payload))
    flipped = bytearray(payload)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)
