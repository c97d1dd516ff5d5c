"""Types of values that all rooms share: columns of numbers, masks of rows, the clock, JSON, and steps of long work.

A class that stands for something in the PIPs has a module of its own; here are only shorter names of other libraries'
types.
"""

from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
"""One value a row: a column of times, ledger ids or entry ids."""

Mask = NDArray[np.bool_]
"""One truth value a row."""

Clock = Callable[[], int]
"""Now, in milliseconds since the epoch."""

Json = dict[str, Any]
"""An object of JSON."""

OnStage = Callable[[str, int], None]
"""Told when a stage begins: its name, and how many steps it has."""

OnStep = Callable[[int], None]
"""Told how many steps are done since it was told last; from any thread."""


class InvalidValueError(ValueError):
    """A field of a configuration breaks a rule.

    >>> error = InvalidValueError("wait_ms", "at least {pause_ms} ({least})", value=5, least=7_000)
    >>> str(error)
    'wait_ms must be at least pause_ms (7000), but is 5'
    >>> error.rule_in({"pause_ms": "pauseSeconds"}, 1_000)
    'at least pauseSeconds (7)'

    Args:
        field: The name of the field.
        rule: What it must be; names in braces are bounds, or other fields.
        value: Its value, None where the text must not repeat it.
        bounds: The bounds in the rule, in the unit of the field.
    """

    def __init__(self, field: str, rule: str, *, value: object = None, **bounds: int) -> None:
        self.field = field
        self.value = value
        self._rule = rule
        self._bounds = bounds
        shown = "" if value is None else f", but is {value}"
        super().__init__(f"{field} must be {self.rule_in({}, 1)}{shown}")

    @property
    def other_fields(self) -> list[str]:
        """The names of the other fields that the rule is about."""
        return [name for _, name, _, _ in Formatter().parse(self._rule) if name and name not in self._bounds]

    def rule_in(self, keys: Mapping[str, str], factor: int) -> str:
        """Return the rule with other names of fields and with bounds in another unit, in which they round up.

        Args:
            keys: Names to be used, by field.
            factor: What one of the other unit is in the field's.
        """
        names = {name: keys.get(name, name) for name in self.other_fields}
        return self._rule.format(**names, **{name: -(-bound // factor) for name, bound in self._bounds.items()})
