"""Times as options take them, and what users and the log call topics and subscriptions."""

import time

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.errors import NameNotFoundError
from managed_ledger.names import cursor_name_of, find_cursor, find_topic, full_topic_name, subscription_of
from postdate.command_line.output import iso
from postdate.command_line.times import SIGNED_SPAN, SPAN, TIME, TIME_MS_MAX, parse_time_ms

ORDERS = "persistent://public/default/orders"


@given(st.integers(0, 253_402_300_799_999))
def test_a_time_that_is_shown_can_be_asked_for(time_ms: int) -> None:
    """In ISO 8601 as in milliseconds."""
    assert parse_time_ms(iso(time_ms)) == time_ms
    assert time_ms < 10**11 or parse_time_ms(str(time_ms)) == time_ms


def test_a_span_from_now_is_a_time() -> None:
    before_ms = time.time_ns() // 1_000_000
    found = [parse_time_ms(text) - before_ms for text in ("+10m", "-1h", "+2d")]

    assert all(span <= one < span + 60_000 for one, span in zip(found, (600_000, -3_600_000, 172_800_000), strict=True))
    assert parse_time_ms("-500y") == 0


@pytest.mark.parametrize("kind", [SPAN, SIGNED_SPAN])
def test_a_span_has_a_unit(kind: click.ParamType) -> None:
    assert kind.convert("2m", None, None) == 120_000
    with pytest.raises(click.BadParameter, match="2 what"):
        kind.convert("2", None, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2026-11-21T19:37:29", "names no time zone"),
        ("2026-11-21", "names no time zone"),
        ("soon", "is no time"),
        ("", "is no time"),
        ("1e9", "is no time"),
        ("٣", "is no time"),
        ("-1", "1 what"),
        ("+10", "10 what"),
        ("tomorrow", "from now as"),
        ("1969-12-31T23:59:59Z", "is not between"),
        (str(TIME_MS_MAX + 1), "is not between"),
        ("9" * 99, "is not between"),
        ("2027", "may be a date"),
        ("202706", "may be a date"),
        ("20270615", "may be a date"),
        ("202706150830", "may be a date"),
        ("20270615083059", "may be a date"),
    ],
)
def test_what_is_no_time_is_refused(text: str, says: str) -> None:
    """A time without a zone is none: it does not say which moment is meant."""
    with pytest.raises(ValueError, match=says):
        parse_time_ms(text)
    with pytest.raises(click.BadParameter, match=says):
        TIME.convert(text, None, None)


@pytest.mark.parametrize("name", ["orders", "public/default/orders", ORDERS])
def test_a_topic_has_three_names(name: str) -> None:
    assert full_topic_name(name) == find_topic(name, {ORDERS, "orders2"}) == ORDERS


@given(st.text(min_size=1))
def test_every_subscription_is_found_by_its_own_name(name: str) -> None:
    """A name may have any signs, also beside one whose name looks like it quoted."""
    try:
        stored = cursor_name_of(name)
    except UnicodeEncodeError:
        return

    assert subscription_of(stored) == name
    assert find_cursor(name, {stored, cursor_name_of(stored), name}) == stored
    assert not stored.startswith("#")


def test_an_embedding_programs_own_names_are_found() -> None:
    """A topic without a namespace, a cursor that is not quoted."""
    assert find_topic("a", {"a", "b"}) == "a"
    assert find_cursor("s2 ü", {"s2 ü"}) == "s2 ü"
    assert find_cursor("s2%20%C3%BC", {"s2%20%C3%BC"}) == "s2%20%C3%BC"


@pytest.mark.parametrize(
    ("name", "there", "says"),
    [
        ("order", {ORDERS, "persistent://a/b/zebra"}, f"There is no topic order; near to it is {ORDERS}"),
        ("x", {ORDERS}, f"There is no topic x; there is {ORDERS}"),
        ("", {ORDERS}, f"There is no topic ''; there is {ORDERS}"),
        ("x", set(), "There is no topic x, nor any other"),
    ],
)
def test_a_name_that_matches_nothing_comes_with_the_nearest(name: str, there: set[str], says: str) -> None:
    with pytest.raises(NameNotFoundError) as refusal:
        find_topic(name, there)

    assert str(refusal.value) == says
