"""How topics and subscriptions are called, by their users and in the log.

    user writes     reminders, public/default/reminders, persistent://public/default/reminders
    the log has     persistent://public/default/reminders
    user writes     s2 ü
    the log has     s2%20%C3%BC

A log's topics have whole names. A cursor's name is that of its subscription, quoted, so that a name that begins with
`#` can be a cursor of the service's own. An embedding program may call topics and cursors otherwise: a name that the
log has just as it is written is found, too.
"""

from collections.abc import Collection
from difflib import get_close_matches
from urllib.parse import quote, unquote

from managed_ledger.errors import NameNotFoundError

_DOMAIN = "persistent"
_NEAREST_MAX = 3


def full_topic_name(name: str) -> str:
    """Complete `topic` and `tenant/namespace/topic`; every other form stays as it is.

    >>> full_topic_name("orders"), full_topic_name("shop/eu/orders")
    ('persistent://public/default/orders', 'persistent://shop/eu/orders')
    """
    if "://" in name or name.count("/") not in (0, 2):
        return name
    return f"{_DOMAIN}://{name}" if "/" in name else f"{_DOMAIN}://public/default/{name}"


def cursor_name_of(subscription: str) -> str:
    """Return the name of a subscription's cursor.

    >>> cursor_name_of("s2 ü")
    's2%20%C3%BC'
    """
    return quote(subscription, safe="")


def subscription_of(cursor_name: str) -> str:
    """Return the name of a cursor's subscription; a cursor of the service's own keeps its name.

    >>> subscription_of("s2%20%C3%BC")
    's2 ü'
    """
    return unquote(cursor_name)


def match_topic(name: str, topics: Collection[str]) -> str | None:
    """Return the topic of a name, short or whole; None where there is none."""
    return next((form for form in (full_topic_name(name), name) if form in topics), None)


def find_topic(name: str, topics: Collection[str]) -> str:
    """Return the topic of a name, short or whole.

    Raises:
        NameNotFoundError: There is none; the text has the nearest names.
    """
    found = match_topic(name, topics)
    if found is None:
        shown = name or "''"
        raise NameNotFoundError(f"There is no topic {shown}{_nearest(name, topics)}")
    return found


def find_cursor(name: str, cursors: Collection[str], where: str = "") -> str:
    """Return the name of the cursor of a subscription's name, quoted or not.

    Args:
        name: The subscription's name.
        cursors: Names of cursors.
        where: Of what, for the error.

    Raises:
        NameNotFoundError: There is none; the text has the nearest names.
    """
    found = next((form for form in (cursor_name_of(name), name) if form in cursors), None)
    if found is None:
        raise NameNotFoundError(f"There is no subscription {name}{where}{_nearest(name, cursors)}")
    return found


def _nearest(asked: str, names: Collection[str]) -> str:
    """Name the nearest names: by its last part, as a topic's others are mostly the same."""
    by_last: dict[str, str] = {}
    for name in sorted(names):
        by_last.setdefault(_last_part(subscription_of(name)), subscription_of(name))
    near = get_close_matches(_last_part(asked), by_last, _NEAREST_MAX, cutoff=0.6)
    shown = [by_last[one] for one in near] or [subscription_of(name) for name in sorted(names)[:_NEAREST_MAX]]
    if not shown:
        return ", nor any other"
    return f"; {'near to it' if near else 'there'} {'is' if len(shown) == 1 else 'are'} {', '.join(shown)}"


def _last_part(name: str) -> str:
    return name.rpartition("/")[2].lower()
