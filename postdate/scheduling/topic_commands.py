"""The commands on topics and subscriptions of a running service: `postdate topics` and `postdate subscriptions`.

They call Pulsar's admin paths. Before anything is lost or delivered again they say how much and ask, unless `--yes` is
given; `--dry-run` says how much alone. Counts are of entries of the log: a whole batch is one.
"""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

import click

from managed_ledger.errors import NameNotFoundError
from managed_ledger.names import cursor_name_of, find_cursor, find_topic, full_topic_name
from managed_ledger.positions.value_types import Json
from postdate.command_line.endings import help_end
from postdate.command_line.options import dry_run_option, in_order, yes_option
from postdate.command_line.output import json_option, make_console, output_width, print_json
from postdate.command_line.times import SPAN, TIME_OF_MESSAGES
from postdate.scheduling.api import ScheduleApi, topic_path
from postdate.scheduling.command_options import on_service
from postdate.scheduling.errors import ScheduleRequestError
from postdate.scheduling.tables import printable, topic_table

_PEEK_MAX: Final = 100
_HEX_BYTES_MAX: Final = 256
_EARLIEST: Final = {"ledgerId": -1, "entryId": -1}
_LATEST: Final = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}

_sure = in_order(
    dry_run_option("say how many entries of the log are meant"),
    yes_option("Do not ask before messages are lost or delivered again."),
    json_option("how many entries are lost and delivered again"),
)
_force = click.option("--force", is_flag=True, help="Also while clients are connected: they are disconnected.")
_named = in_order(click.argument("topic"), click.argument("subscription"))


# ---- topics ----


@click.group(
    invoke_without_command=True,
    epilog=help_end(
        "postdate topics",
        "postdate topics --url http://127.0.0.1:8081 --json",
        "postdate topics delete shop/eu/orders --dry-run",
    ),
)
@json_option("the answer of GET /postdate/v1/topics")
@on_service
def topics(api: ScheduleApi, is_json: bool) -> None:
    """List topics: how many messages are delayed, overdue and in hand, the next time, and what is paused."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        given = [name for name in context.params if context.get_parameter_source(name) is _TYPED]
        if given:
            raise click.UsageError(f"give options behind {context.invoked_subcommand}")
        return
    answer = api.get("/topics")
    if is_json:
        print_json(answer)
    elif answer["topics"]:
        make_console().print(topic_table(answer["topics"], output_width()))
    else:
        click.echo("There is no topic")


_TYPED: Final = click.core.ParameterSource.COMMANDLINE


@topics.command(
    "create", epilog=help_end("postdate topics create reminders", "postdate topics create shop/eu/orders --json")
)
@click.argument("topic")
@json_option("the name of the topic")
@on_service
def create_topic(api: ScheduleApi, topic: str, is_json: bool) -> None:
    """Create TOPIC, which publishing and subscribing do as well."""
    api.admin("PUT", topic, "")
    _say({"topic": full_topic_name(topic)}, f"{topic} is created", is_json=is_json)


@topics.command(
    "delete", epilog=help_end("postdate topics delete reminders --dry-run", "postdate topics delete reminders --yes")
)
@click.argument("topic")
@_force
@_sure
@on_service
def delete_topic(api: ScheduleApi, topic: str, force: bool, **sure: Any) -> None:
    """Delete TOPIC with its messages, its subscriptions, its policies and the grants on it."""
    with _naming(api, topic):
        _change(api, "DELETE", topic, "", deleted=topic, options={"force": force}, **sure)


# ---- subscriptions ----


@click.group(
    epilog=help_end(
        "postdate subscriptions list reminders",
        "postdate subscriptions peek reminders billing --count 3",
        "postdate subscriptions delete reminders billing --dry-run",
    )
)
def subscriptions() -> None:
    """List the subscriptions of a topic, make, empty, move and remove them, and look at their messages."""


@subscriptions.command("list", epilog=help_end("postdate subscriptions list reminders"))
@click.argument("topic")
@json_option("the subscriptions with their counts")
@on_service
def list_subscriptions(api: ScheduleApi, topic: str, is_json: bool) -> None:
    """List the subscriptions of TOPIC: what is delayed, overdue and in hand, and their backlog."""
    with _naming(api, topic):
        answer = api.get(topic_path(topic))
    if is_json:
        print_json({"subscriptions": answer["subscriptions"]})
    else:
        make_console().print(topic_table([answer], output_width()))


def _places(*, has_default: bool) -> Callable[[Any], Any]:
    """Add the options that name a place in the log."""
    return in_order(
        click.option("--earliest", is_flag=True, help="The first message that the log has."),
        click.option(
            "--latest", is_flag=True, help="What is published from now on." + (" The default." if has_default else "")
        ),
        click.option("--to-id", metavar="ID", help="This message, ledger:entry."),
    )


def _place(*, earliest: bool, latest: bool, to_id: str | None) -> Json | None:
    """Return the message id of the place that is named, None where none is."""
    if earliest + latest + (to_id is not None) > 1:
        raise click.UsageError("give one of --earliest, --latest and --to-id")
    if to_id is None:
        return _EARLIEST if earliest else _LATEST if latest else None
    ledger_id, _, entry_id = to_id.partition(":")
    if not all(one.isascii() and one.isdigit() for one in (ledger_id, entry_id)):
        raise click.BadParameter(f"{to_id} is no message id: write ledger:entry, such as 12:7", param_hint="--to-id")
    return {"ledgerId": int(ledger_id), "entryId": int(entry_id)}


@subscriptions.command(
    "create",
    epilog=help_end(
        "postdate subscriptions create reminders billing",
        "postdate subscriptions create reminders billing --earliest",
    ),
)
@_named
@_places(has_default=True)
@json_option("the names of topic and subscription")
@on_service
def create_subscription(api: ScheduleApi, topic: str, subscription: str, is_json: bool, **place: Any) -> None:
    """Create SUBSCRIPTION of TOPIC, so that messages are kept for it before its first consumer comes."""
    api.admin("PUT", topic, _path(subscription), _place(**place) or _LATEST)
    names = {"topic": full_topic_name(topic), "subscription": subscription}
    _say(names, f"{subscription} of {topic} is created", is_json=is_json)


@subscriptions.command(
    "delete",
    epilog=help_end(
        "postdate subscriptions delete reminders billing --dry-run",
        "postdate subscriptions delete reminders billing --force --yes",
    ),
)
@_named
@_force
@_sure
@on_service
def delete_subscription(api: ScheduleApi, topic: str, subscription: str, force: bool, **sure: Any) -> None:
    """Delete SUBSCRIPTION of TOPIC: the log need not keep messages for it any more."""
    deleted = f"{subscription} of {topic}"
    with _naming(api, topic, subscription):
        _change(api, "DELETE", topic, _path(subscription), deleted=deleted, options={"force": force}, **sure)


@subscriptions.command(
    epilog=help_end(
        "postdate subscriptions skip reminders billing 10 --dry-run",
        "postdate subscriptions skip reminders billing 1 --yes",
    )
)
@_named
@click.argument("count", type=click.IntRange(1))
@_sure
@on_service
def skip(api: ScheduleApi, topic: str, subscription: str, count: int, **sure: Any) -> None:
    """Skip the next COUNT entries of SUBSCRIPTION, in the order in which they were published, delayed ones too."""
    with _naming(api, topic, subscription):
        _change(api, "POST", topic, f"{_path(subscription)}/skip/{count}", **sure)


@subscriptions.command(
    epilog=help_end(
        "postdate subscriptions clear reminders billing --dry-run",
        "postdate subscriptions clear reminders billing --yes",
    )
)
@_named
@_sure
@on_service
def clear(api: ScheduleApi, topic: str, subscription: str, **sure: Any) -> None:
    """Skip all that is in the log for SUBSCRIPTION, delayed messages too."""
    with _naming(api, topic, subscription):
        _change(api, "POST", topic, f"{_path(subscription)}/skip_all", **sure)


@subscriptions.command(
    epilog=help_end(
        "postdate subscriptions expire reminders billing --older-than 30d --dry-run",
        "postdate subscriptions expire reminders billing --older-than 1h --yes",
    )
)
@_named
@click.option("--older-than", "age_ms", type=SPAN, required=True, help="The age: 90s, 5m, 2h, 3d.")
@_sure
@on_service
def expire(api: ScheduleApi, topic: str, subscription: str, age_ms: int, **sure: Any) -> None:
    """Skip the first messages of SUBSCRIPTION, up to one that is younger. A delayed one ages from its time on."""
    path = f"{_path(subscription)}/expireMessages/{age_ms // 1_000}"
    with _naming(api, topic, subscription):
        _change(api, "POST", topic, path, verb="expired", **sure)


@subscriptions.command(
    epilog=help_end(
        "postdate subscriptions seek reminders billing --earliest --dry-run",
        "postdate subscriptions seek reminders billing --time 2027-01-15T08:00:00Z",
        "postdate subscriptions seek reminders billing --to-id 12:7 --yes",
    )
)
@_named
@click.option("--time", "time_ms", type=TIME_OF_MESSAGES, help="What was published from this time on.")
@_places(has_default=False)
@_sure
@on_service
def seek(
    api: ScheduleApi,
    topic: str,
    subscription: str,
    time_ms: int | None,
    is_dry_run: bool,
    is_sure: bool,
    is_json: bool,
    **place: Any,
) -> None:
    """Let SUBSCRIPTION go on at another place in the log: what is before it is skipped, what follows comes again."""
    message_id = _place(**place)
    if (message_id is None) == (time_ms is None):
        raise click.UsageError("give one of --time, --to-id, --earliest and --latest")
    path = f"{_path(subscription)}/resetcursor" + ("" if time_ms is None else f"/{time_ms}")
    sure: Json = {"is_dry_run": is_dry_run, "is_sure": is_sure, "is_json": is_json}
    with _naming(api, topic, subscription):
        _change(api, "POST", topic, path, body=message_id, **sure)


def _change(
    api: ScheduleApi,
    method: str,
    topic: str,
    path: str,
    *,
    is_dry_run: bool,
    is_sure: bool,
    is_json: bool,
    verb: str = "skipped",
    deleted: str = "",
    body: Json | None = None,
    options: Json | None = None,
) -> None:
    """Count what is lost and what comes again, ask, and change it.

    Args:
        api: The service.
        method: The method of the request.
        topic: Its topic.
        path: Its path behind the topic.
        is_dry_run: Whether nothing is changed.
        is_sure: Whether nothing is asked.
        is_json: Whether the answer is JSON.
        verb: What happens to entries that are lost.
        deleted: The name of what is deleted with them, empty for nothing.
        body: The body of the request.
        options: The options of the request.
    """
    meant = api.admin(method, topic, path, body, options={**(options or {}), "dryRun": True})
    if not is_dry_run and (deleted or meant["entries"] or meant["redelivered"]):
        if not is_sure:
            first = f"{deleted} will be deleted. " if deleted else ""
            click.confirm(f"{first}{_sentence(meant, verb, 'will be')} Go on?", abort=True, err=True)
        api.admin(method, topic, path, body, options=options)
    is_deletion = deleted and not is_dry_run
    said = f"{deleted} is deleted" if is_deletion else _sentence(meant, verb, "would be" if is_dry_run else "are")
    _say(meant, said, is_json=is_json)


def _sentence(meant: Json, verb: str, auxiliary: str) -> str:
    """Return what happens to entries.

    >>> _sentence({"entries": 1, "redelivered": 2_000}, "skipped", "will be")
    '1 entry will be skipped, 2,000 entries will be delivered again.'
    >>> _sentence({"entries": 1, "redelivered": 0}, "expired", "are")
    '1 entry is expired.'
    """

    def of(count: int, what: str) -> str:
        noun, helper = ("entry", "is" if auxiliary == "are" else auxiliary) if count == 1 else ("entries", auxiliary)
        return f"{count:,} {noun} {helper} {what}"

    again = [of(meant["redelivered"], "delivered again")] if meant["redelivered"] else []
    return ", ".join([of(meant["entries"], verb), *again]) + "."


# ---- messages ----


@subscriptions.command(
    epilog=help_end(
        "postdate subscriptions peek reminders billing",
        "postdate subscriptions peek reminders billing --count 5 --json",
    )
)
@_named
@click.option("--count", type=click.IntRange(1, _PEEK_MAX), default=1, show_default=True, help="How many at most.")
@json_option("the messages, with their payloads in base64")
@on_service
def peek(api: ScheduleApi, topic: str, subscription: str, count: int, is_json: bool) -> None:
    """Show the first messages of SUBSCRIPTION that are not acknowledged, and leave them where they are."""
    path = f"{topic_path(topic)}/subscriptions/{quote(subscription, safe='')}/messages?limit={count}"
    with _naming(api, topic, subscription):
        answer = api.get(path)
    if is_json:
        print_json(answer)
    elif not answer["messages"]:
        click.echo("No message is left")
    for message in [] if is_json else answer["messages"]:
        for line in _lines_of(message):
            click.echo(printable(line))


def _lines_of(message: Json) -> Iterator[str]:
    """Give a message for people: id, key and times, then properties, then the payload."""
    key = message.get("key") or message.get("keyBase64")
    times = {"key": key, "published": message["publishTime"], "due": message.get("deliverAt")}
    yield "  ".join([message["messageId"], *(f"{name} {value}" for name, value in times.items() if value is not None)])
    for name, value in message["properties"].items():
        yield f"  {name}={value}"
    if message.get("damaged"):
        yield "  damaged: its payload cannot be read"
    else:
        payload = base64.b64decode(message["payload"])
        yield from (f"  {line}" for line in _payload_text(payload, message.get("payloadCompression")).splitlines())


def _payload_text(payload: bytes, compression: str | None) -> str:
    r"""Return a payload as JSON, as text, or as hexadecimal digits.

    >>> print(_payload_text(b'{"a":[1]}', None))
    {
      "a": [
        1
      ]
    }
    >>> _payload_text("grüß".encode(), None), _payload_text(b"\xff\x00", None), _payload_text(b"x", "LZ4")
    ('grüß', '2 bytes: ff00', '1 byte, LZ4: 78')
    """
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or compression is not None or "\x00" in text:
        shown = payload[:_HEX_BYTES_MAX].hex() + ("..." if len(payload) > _HEX_BYTES_MAX else "")
        kind = "" if compression is None else f", {compression}"
        return f"{len(payload):,} {'byte' if len(payload) == 1 else 'bytes'}{kind}: {shown}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps(found, indent=2, ensure_ascii=False) if isinstance(found, dict | list) else text


# ---- names ----


def _path(subscription: str) -> str:
    return f"/subscription/{quote(subscription, safe='')}"


def _say(answer: Json, text: str, *, is_json: bool) -> None:
    if is_json:
        print_json(answer)
    else:
        click.echo(printable(text))


@contextmanager
def _naming(api: ScheduleApi, topic: str, subscription: str | None = None) -> Iterator[None]:
    """Name the nearest topic or subscription where there is none of this name, and the option against clients."""
    try:
        yield
    except ScheduleRequestError as error:
        if error.status == 412 and "connected" in str(error):
            text = str(error).removesuffix(".")
            raise ScheduleRequestError(412, text, field=None, advice="--force disconnects them") from error
        if error.status != 404:
            raise
        names = [f"persistent://{one['name']}" for one in api.get("/topics")["topics"]]
        try:
            found = find_topic(topic, names)
            if subscription is not None:
                of_topic = [one["name"] for one in api.get(topic_path(found))["subscriptions"]]
                find_cursor(subscription, list(map(cursor_name_of, of_topic)), f" of {topic}")
        except NameNotFoundError as missing:
            raise ScheduleRequestError(404, str(missing), field=None, advice="") from error
        raise
