"""A configuration of any text is read as Java reads it, or refused with a `ConfigError`."""

from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from postdate.broker.configuration.config import ConfigError, load_config, settings
from postdate.broker.configuration.text import parse_config_text

_KEYS = st.text(st.characters(codec="ascii", categories=("Lu", "Ll", "Nd")), min_size=1, max_size=12)
_VALUES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=20)
_SMALL_NUMBERS = st.integers(-3, 100_000).map(str)
_NUMBERS = st.integers().map(str) | st.from_regex(r"[+-]?[0-9]{1,30}", fullmatch=True)


def _escaped(value: str) -> str:
    """Write a value as Java's `Properties.store` would, as far as it matters."""
    return value.replace("\\", "\\\\")


@given(
    st.lists(
        st.tuples(_KEYS, _VALUES, st.sampled_from(["=", " = ", ":", "\t:\t"])), unique_by=lambda written: written[0]
    )
)
def test_what_was_written_is_read(pairs: list[tuple[str, str, str]]) -> None:
    """Every key has its value, and the line where that stood."""
    text = "".join(f"{key}{separator}{_escaped(value)}\n# and\n\n" for key, value, separator in pairs)

    parsed = parse_config_text(text, name="broker.conf")

    assert parsed == {key: (value.strip(), 3 * row + 1) for row, (key, value, _) in enumerate(pairs)}


def _refusal(act: Callable[[], object]) -> str | None:
    """Return why something was refused, None if it was not; any other error comes out."""
    try:
        act()
    except ConfigError as error:
        return str(error)
    return None


def _blame(key: str, value: str) -> str:
    """Return how a refusal of `--set key=value` begins; a secret value is not repeated."""
    if next(setting for setting in settings() if setting.key == key).is_secret:
        return f"--set: {key}=(secret): "
    return f"--set {key}={value}: "


@given(st.text())
@example("=")
@example("\\")
@example("a\\\n")
@example("\\u12=1")
def test_any_text_is_read_or_refused(text: str) -> None:
    refusal = _refusal(lambda: parse_config_text(text, name="broker.conf"))

    assert refusal is None or refusal.startswith("broker.conf:")


@given(st.sampled_from(settings()).map(lambda setting: setting.key), _VALUES | _NUMBERS)
@example("brokerServicePort", "9" * 5000)
@example("dataDirectory", "~")
@example("bindAddress", "\udc80")
@example("dispatcherReadFailureBackoffInitialTimeInMs", "15001")
@example("bucketSnapshotS3SecretAccessKey", "key without an id")
def test_any_value_is_taken_or_refused(key: str, value: str) -> None:
    refusal = _refusal(lambda: load_config(None, environment={}, overrides=[f"{key}={value}"]))

    assert refusal is None or refusal.startswith(_blame(key, value))


@given(st.dictionaries(st.sampled_from(settings()).map(lambda setting: setting.key), _SMALL_NUMBERS, max_size=6))
def test_any_values_together_are_taken_or_one_is_blamed(values: dict[str, str]) -> None:
    """The refusal of a broken relation names a key that was set."""
    overrides = [f"{key}={value}" for key, value in values.items()]

    refusal = _refusal(lambda: load_config(None, environment={}, overrides=overrides))

    assert refusal is None or any(refusal.startswith(_blame(key, value)) for key, value in values.items())
