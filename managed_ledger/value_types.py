"""Types of values that all rooms share: columns of numbers, masks of rows, the clock, JSON, and steps of long work.

A class that stands for something in the PIPs has a module of its own; here are only shorter names of other libraries'
types. Like `position.py`, this module may be imported by every room.
"""

from collections.abc import Callable
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
