"""Number columns of DataFrames of any origin: whole numbers of any width, also as the decimals that JDBC gives.

A column of times, fractions or texts is refused, as its unit cannot be guessed: Spark's timestamps are microseconds. A
decimal that is no whole number of 64 bits is a bad row, like null.
"""

from collections.abc import Iterable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - every Spark program calls it F

TEXT_COLUMNS = ("topic", "cursor")
WHOLE_TYPES = ("tinyint", "smallint", "int", "bigint")


def check_types(types: Mapping[str, str], names: Iterable[str], what: str) -> None:
    """Refuse columns that are missing or hold something else than names or numbers.

    Args:
        types: Spark's name of the type of each column.
        names: The columns that must be there.
        what: The name of their DataFrame, for messages.

    Raises:
        ValueError: One of them is not as it must be.
    """
    names = tuple(names)
    missing = [name for name in names if name not in types]
    if missing:
        raise ValueError(f"{what} the columns {', '.join(names)}; missing: {', '.join(missing)}")
    for name in names:
        if name in TEXT_COLUMNS:
            is_good, wanted = types[name].startswith("string"), "string"
        else:
            is_good, wanted = types[name] in WHOLE_TYPES or is_decimal(types[name]), "bigint"
        if not is_good:
            raise ValueError(f"the column {name} must be {wanted}, but is {types[name]}{_advice(name, types[name])}")


def _advice(name: str, type_name: str) -> str:
    return f": take unix_millis({name})" if name.endswith("_ms") and type_name.startswith("timestamp") else ""


def is_decimal(type_name: str) -> bool:
    """Whether a type is a decimal, of any width."""
    return type_name.startswith("decimal")


def whole(name: str, type_name: str) -> Column:
    """Return a column as bigint; null where it is no whole number of 64 bits."""
    if not is_decimal(type_name):
        return F.col(name).cast("bigint")
    number = F.col(name).try_cast("bigint")
    return F.when(number == F.col(name), number)
