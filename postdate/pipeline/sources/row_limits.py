"""The rows that a source of headers or of index rows is asked for, by its options: `topic`, `deliver_at_ms_max`, ...

They leave out whole ledgers, buckets and rows before Spark sees one. Filters of the query are Spark's own: PySpark
keeps one plan of a loaded DataFrame for all its uses, so that the filter of one query would hide rows from another.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

_TEXT_COLUMNS = ("topic", "cursor")
_COMPARISONS: Final[Mapping[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "": (operator.eq, "equal"),
    "_min": (operator.ge, "greater_equal"),
    "_max": (operator.le, "less_equal"),
}


class Limit(NamedTuple):
    """A column, the suffix of the option, and its value."""

    column: str
    suffix: str
    value: str | int

    def allows(self, value: str | int) -> bool:
        """Whether a row with this value passes."""
        return _COMPARISONS[self.suffix][0](value, self.value)


class RowLimits(tuple[Limit, ...]):
    """The limits of a source; a row passes that is within all of them."""

    __slots__ = ()

    @classmethod
    def of_options(cls, options: Mapping[str, str], columns: Sequence[str]) -> Self:
        """Take the options that limit these columns: `<column>` to be equal, `<column>_min` and `<column>_max`.

        Raises:
            ValueError: A limit of a number is no number.
        """
        named = [(column, suffix) for column in columns for suffix in _COMPARISONS if column + suffix in options]
        return cls(
            Limit(column, suffix, _value_of(column, suffix, options[column + suffix])) for column, suffix in named
        )

    def allow(self, **values: str | int) -> bool:
        """Whether rows with these values, by column, can pass."""
        return all(limit.allows(values[limit.column]) for limit in self if limit.column in values)

    def allow_up_to(self, **largest: int) -> bool:
        """Whether any row can pass where no value of a column is larger than this."""
        limits = [limit for limit in self if limit.column in largest and limit.suffix != "_max"]
        return all(int(limit.value) <= largest[limit.column] for limit in limits)

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that pass."""
        for column, suffix, value in self:
            values = batch.column(column)
            batch = batch.filter(pc.call_function(_COMPARISONS[suffix][1], [values, pa.scalar(value, values.type)]))
        return batch


def _value_of(column: str, suffix: str, text: str) -> str | int:
    if column in _TEXT_COLUMNS:
        return text
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{column}{suffix} must be a whole number, but is {text!r}") from None
