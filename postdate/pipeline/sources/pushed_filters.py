"""The filters that a source of headers or of index rows uses before Spark sees a row.

They leave out whole ledgers, buckets and rows early. They come as options of the source (`topic`, `ledger_id_min`,
`deliver_at_ms_max`, ...), or from the query itself where the option `push_filters` is true.

That is off unless asked for, because PySpark 4.3.0 keeps one plan of a loaded DataFrame for all its uses: after
`a = frame.where("topic = 'a'")` and `b = frame.where("topic = 'b'")`, `a.union(b)` reads the rows of the filter that
was pushed last for both, and `frame` itself reads no more than that. It is safe for a DataFrame that only one query
with one filter is made of.

A filter of a query is given back to Spark as well, which applies it to the remaining rows: so these filters may let too
many rows through, but must never wrongly leave one out.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_COMPARISONS: dict[type[Filter], tuple[Callable[[Any, Any], bool], str]] = {
    EqualTo: (operator.eq, "equal"),
    GreaterThan: (operator.gt, "greater"),
    GreaterThanOrEqual: (operator.ge, "greater_equal"),
    LessThan: (operator.lt, "less"),
    LessThanOrEqual: (operator.le, "less_equal"),
    In: (lambda value, values: value in values, "is_in"),
}
_TEXT_COLUMNS = ("topic", "cursor")
# The filters that a bound on a ledger can answer: no row is above its largest value.
_AT_MOST = (GreaterThan, GreaterThanOrEqual, EqualTo)


class ColumnFilter(NamedTuple):
    """One comparison of a column with a literal, or with several."""

    column: str
    kind: type[Filter]
    value: Any

    def allows(self, value: object) -> bool:
        """Whether a row with this value can pass."""
        return bool(_COMPARISONS[self.kind][0](value, self.value))

    def allows_up_to(self, largest: int) -> bool:
        """Whether any row can pass where no value is larger than this."""
        if self.kind is GreaterThan:
            return bool(largest > self.value)
        return self.kind not in _AT_MOST or bool(largest >= self.value)

    def mask(self, column: pa.Array) -> pa.Array:
        """Which values pass; null for null."""
        name = _COMPARISONS[self.kind][1]
        if self.kind is In:
            return pc.is_in(column, pa.array(list(self.value), column.type))
        return pc.call_function(name, [column, pa.scalar(self.value, column.type)])


class PushedFilters(tuple[ColumnFilter, ...]):
    """The comparisons of a query that are understood here; all of them must hold."""

    __slots__ = ()

    @classmethod
    def of(cls, filters: Iterable[Filter], columns: Sequence[str]) -> Self:
        """Take the filters on these columns."""
        return cls(
            ColumnFilter(pushed.attribute[0], type(pushed), pushed.value)
            for pushed in filters
            if type(pushed) in _COMPARISONS and len(pushed.attribute) == 1 and pushed.attribute[0] in columns
        )

    @classmethod
    def of_options(cls, options: Mapping[str, str], columns: Sequence[str]) -> Self:
        """Take the options that limit these columns: `<column>` to be equal, `<column>_min` and `<column>_max`.

        Raises:
            ValueError: A limit of a number is no number.
        """
        found = []
        for column in columns:
            for suffix, kind in (("", EqualTo), ("_min", GreaterThanOrEqual), ("_max", LessThanOrEqual)):
                text = options.get(column + suffix)
                if text is not None:
                    found.append(ColumnFilter(column, kind, _value_of(column, suffix, text)))
        return cls(found)

    def allow(self, **values: object) -> bool:
        """Whether rows with these values, by column, can pass."""
        return all(pushed.allows(values[pushed.column]) for pushed in self if pushed.column in values)

    def allow_up_to(self, **largest: int) -> bool:
        """Whether any row can pass where no value of a column is larger than this."""
        return all(pushed.allows_up_to(largest[pushed.column]) for pushed in self if pushed.column in largest)

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that pass."""
        for pushed in self:
            batch = batch.filter(pushed.mask(batch.column(pushed.column)))
        return batch


def is_pushing(options: Mapping[str, str]) -> bool:
    """Whether the source is to take the filters of the query."""
    return options.get("push_filters", "false").lower() == "true"


def _value_of(column: str, suffix: str, text: str) -> str | int:
    if column in _TEXT_COLUMNS:
        return text
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{column}{suffix} must be a whole number, but is {text!r}") from None
