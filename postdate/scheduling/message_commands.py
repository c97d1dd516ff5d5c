"""The commands `postdate publish` and `postdate consume`: all that a shell script needs.

Publishing is a request over HTTP. Consuming is a client of the protocol, whose address the web port tells.
"""

import base64
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from managed_ledger.names import full_topic_name
from managed_ledger.positions.value_types import Json
from postdate.command_line.endings import EXIT_CODE_INTERRUPTED, EXIT_CODE_WRONG, help_end, refuse, say
from postdate.command_line.output import counted, json_option, print_json
from postdate.command_line.times import SPAN, TIME_OF_MESSAGES
from postdate.scheduling.api import ScheduleApi, topic_path
from postdate.scheduling.clients import new_client
from postdate.scheduling.command_options import on_service, time_field
from postdate.scheduling.errors import ScheduleRequestError, SchedulingError

if TYPE_CHECKING:
    import pulsar

_LINES_MAX: Final = 1_000
"""Messages in one request, as the service takes them."""
_READ_BYTES: Final = 64 * 1024
_RECEIVE_MS: Final = 200
"""How long Ctrl-C waits at most."""
_PREFETCHED_MAX: Final = 1_000


# ---- publish ----


@click.command(
    epilog=help_end(
        'postdate publish reminders "water the plants" --key anna --delay 3h',
        'postdate publish reminders "pay, please" --delay 1d --own-id order-17',
        "postdate publish reminders hello --at 2027-01-15T08:00:00Z --property user=17 --subscription workers",
        "tail -F events.log | postdate publish events - --lines --delay 1m",
    )
)
@click.argument("topic")
@click.argument("payload")
@click.option("--key", help="Messages of one key keep their order, and go to one consumer at a time.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property; repeatable.")
@click.option("--delay", "deliver_after_ms", type=SPAN, help="Deliver it so long from now: 90s, 5m, 2h, 3d.")
@click.option("--at", "deliver_at_ms", type=TIME_OF_MESSAGES, help="Deliver it at this time: ISO 8601 or milliseconds.")
@click.option("--own-id", metavar="ID", help="An id of yours: it takes the place of what is scheduled under this id.")
@click.option("--subscription", help="One that is to get it; made if it is missing, and the topic with it.")
@click.option("--lines", "is_lines", is_flag=True, help="With PAYLOAD -: each line is a message, sent as it comes.")
@json_option("messageId, or messageIds of --lines")
@on_service
def publish(api: ScheduleApi, topic: str, payload: str, is_lines: bool, is_json: bool, **options: Any) -> None:
    """Publish PAYLOAD to TOPIC, - for what stdin has, and print the message's id once it is stored.

    It is refused where no subscription would get it when it is due.
    """
    if is_lines and payload != "-":
        raise click.UsageError("--lines reads stdin: give - as PAYLOAD")
    if is_lines and options["own_id"] is not None:
        raise click.UsageError("--own-id is of one message, and --lines publishes many")
    path, message = f"{topic_path(topic)}/scheduled", _message(**options)
    stdin = sys.stdin.buffer
    if not is_lines:
        answer = api.post(path, message | _payload(stdin.read() if payload == "-" else os.fsencode(payload)))
        if is_json:
            print_json(answer)
        else:
            click.echo(answer["messageId"])
        return
    ids: list[str] = []
    try:
        for lines in _batches(stdin):
            new = api.post_lines(path, [message | _payload(line) for line in lines])["messageIds"]
            ids += new
            if not is_json:
                click.echo("\n".join(new))
    except (SchedulingError, KeyboardInterrupt):
        say(f"{counted(len(ids), 'line')} before that {'is' if len(ids) == 1 else 'are'} published")
        raise
    if is_json:
        print_json({"messageIds": ids})


def _message(
    *,
    key: str | None,
    properties: tuple[str, ...],
    deliver_after_ms: int | None,
    deliver_at_ms: int | None,
    own_id: str | None,
    subscription: str | None,
) -> Json:
    """Return a message without its payload, as requests have it."""
    if deliver_after_ms is not None and deliver_at_ms is not None:
        raise click.UsageError("give one of --delay and --at, or none for at once")
    found: Json = {}
    for one in properties:
        name, separator, value = one.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{one!r} is no property: write NAME=VALUE", param_hint="--property")
        found[name] = value
    return {
        **({} if key is None else {"key": key}),
        **({"properties": found} if found else {}),
        **({} if deliver_after_ms is None else {"deliverAfterMs": deliver_after_ms}),
        **({} if deliver_at_ms is None else {"deliverAtMs": time_field(deliver_at_ms)}),
        **({} if own_id is None else {"id": own_id}),
        **({} if subscription is None else {"subscription": subscription}),
    }


def _payload(payload: bytes) -> Json:
    return {"payloadBase64": base64.b64encode(payload).decode()}


def _batches(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Give the lines that have come, as soon as they have."""
    rest = b""
    while data := getattr(stream, "read1", stream.read)(_READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for first in range(0, len(lines), _LINES_MAX):
            yield lines[first : first + _LINES_MAX]
    if rest:
        yield [rest]


# ---- consume ----


@click.command(
    epilog=help_end(
        "postdate consume reminders --subscription workers",
        "postdate consume reminders --subscription workers --max 1 --timeout 1m || echo nothing came",
        "postdate consume reminders --subscription workers --json | while read -r message; do work; done",
        wrong="fewer than --max messages came within --timeout",
    )
)
@click.argument("topic")
@click.option("--subscription", required=True, help="Its messages; made if it is missing, from now on.")
@click.option("--max", "count_max", type=click.IntRange(1), help="End when so many have come. Default: go on.")
@click.option("--timeout", "timeout_ms", type=SPAN, help="End when none has come for so long. Default: wait.")
@click.option("--service-url", metavar="URL", help="Where clients connect. Default: as the web port says.")
@json_option("an object a line, with messageId, key, properties, and payload, or payloadBase64 if it is no text")
@on_service
def consume(
    api: ScheduleApi,
    topic: str,
    subscription: str,
    count_max: int | None,
    timeout_ms: int | None,
    service_url: str | None,
    is_json: bool,
) -> None:
    r"""Print the messages of SUBSCRIPTION of TOPIC when they are due, one a line, and acknowledge each.

    A message is acknowledged when its line is written, so one that was not comes again; a reader that leaves may not
    have read all that was: say how many it wants by --max. The subscription keeps its type, and is key_shared where it
    is new or does not delay. Without --json a line is the
    payload, in which line ends, other signs that cannot be shown, and bytes that are no text are written as \n, \x1b.
    """
    import pulsar

    url = service_url or api.service_url(topic)
    kind, found = "Key_Shared", _found(api, topic, subscription)
    if found is None:
        say(f"{subscription} of {topic} is new: it gets what is published from now on")
    elif found["delays"] and found["type"] is not None:
        kind = found["type"]
    came = 0
    try:
        client = new_client(url, token=api.token, tls_files=api.tls_files)
        try:
            consumer = client.subscribe(
                full_topic_name(topic),
                subscription,
                consumer_type=getattr(pulsar.ConsumerType, kind.replace("_", "")),
                receiver_queue_size=min(count_max or _PREFETCHED_MAX, _PREFETCHED_MAX),
            )
            try:
                for message in _received(consumer, timeout_ms):
                    _print(message, is_json=is_json)
                    consumer.acknowledge(message)
                    came += 1
                    if came == count_max:
                        break
            finally:
                # With the acknowledgements that it has gathered.
                consumer.close()
        finally:
            client.close()
    except pulsar.PulsarException as error:
        refuse(f"{error} ({url}); {counted(came, 'message')} came")
    except BrokenPipeError:
        say(f"the reader of the output has gone after {counted(came, 'message')}; the next ones are not acknowledged")
        raise
    except KeyboardInterrupt:
        say(f"interrupted after {counted(came, 'message')}")
        sys.exit(EXIT_CODE_INTERRUPTED)
    if count_max is not None and came < count_max:
        say(f"{came:,} of {counted(count_max, 'message')} came")
        sys.exit(EXIT_CODE_WRONG)


def _found(api: ScheduleApi, topic: str, name: str) -> Json | None:
    """Return a subscription, None where it or its topic is missing."""
    try:
        there = api.get(f"{topic_path(topic)}/subscriptions")["subscriptions"]
    except ScheduleRequestError as error:
        if error.field != "topic":
            raise
        return None
    return next((one for one in there if one["name"] == name), None)


def _received(consumer: "pulsar.Consumer", timeout_ms: int | None) -> "Iterator[pulsar.Message]":
    """Give messages, until none has come for so long."""
    import pulsar

    last_s = time.monotonic()
    while timeout_ms is None or time.monotonic() - last_s < timeout_ms / 1_000:
        try:
            message = consumer.receive(timeout_millis=_RECEIVE_MS)
        except pulsar.Timeout:
            continue
        yield message
        last_s = time.monotonic()


def _print(message: "pulsar.Message", *, is_json: bool) -> None:
    """Write a message as one line, and give it to the reader."""
    payload = message.data()
    if not is_json:
        click.echo(_one_line(payload))
        return
    message_id = message.message_id()
    found: Json = {
        "messageId": f"{message_id.ledger_id()}:{message_id.entry_id()}",
        "key": message.partition_key() or None,
        "properties": message.properties(),
        "publishTimeMs": message.publish_timestamp(),
        "redeliveryCount": message.redelivery_count(),
    }
    try:
        found["payload"] = payload.decode()
    except UnicodeDecodeError:
        found |= _payload(payload)
    print_json(found, is_line=True)


def _one_line(payload: bytes) -> str:
    r"""Return a payload as a line of text.

    >>> _one_line("grüß\tdich\n".encode()), _one_line(b"\xff\x00")
    ('grüß\tdich\\n', '\\xff\\x00')
    """
    text = payload.decode(errors="backslashreplace")
    return "".join(one if one.isprintable() or one == "\t" else ascii(one)[1:-1] for one in text)
