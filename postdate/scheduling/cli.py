"""The commands on scheduled messages: `postdate scheduled`, `pause`, `resume`, `explain` and `keys`.

They call a running service over HTTP, so they work from any machine and need no data folder. Before more than one
message is changed they say how many and ask, unless `--yes` is given. With the service stopped, and for more than fits
into one request, there are the jobs of `postdate pipeline`.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from urllib.parse import urlencode

import click
from rich.table import Table
from rich.text import Text

from managed_ledger.positions.value_types import Json
from postdate.command_line.endings import EXIT_CODE_WRONG, help_end
from postdate.command_line.options import in_order
from postdate.command_line.output import json_option, make_console, print_json
from postdate.command_line.progress import Steps
from postdate.command_line.times import SIGNED_SPAN, SPAN, TIME_OF_MESSAGES
from postdate.scheduling.api import ScheduleApi, new_operation_id, topic_path
from postdate.scheduling.command_options import (
    confirmation_options,
    fields_of_filters,
    filter_options,
    on_service,
    own_id_option,
    paused_subscription_option,
    subscription_option,
    time_field,
)
from postdate.scheduling.errors import ScheduleRequestError, SchedulingError, ServiceUnavailableError
from postdate.scheduling.tables import (
    backlog_meant,
    backlog_sentence,
    change_line,
    changing_count,
    count_lines,
    explanation_lines,
    key_lines,
    message_notes,
    message_table,
    pause_lines,
    printable,
    round_span,
    trail_table,
)

LIST_LIMIT: Final = 20
PROGRESS_INTERVAL_S: Final = 0.5
"""A change that takes longer shows how far it is, so often."""


def _tell(is_json: bool, answer: Json, *what: Table | str) -> None:
    """Print the answer for programs, or for people tables, and sentences whose words are not torn at a line's end."""
    if is_json:
        print_json(answer)
        return
    console = make_console()
    for one in what:
        console.print(Text(printable(one)) if isinstance(one, str) else one)


@click.group(
    epilog=help_end("postdate scheduled list reminders", "postdate scheduled cancel reminders --key anna --dry-run")
)
def scheduled() -> None:
    """Look at scheduled messages, cancel them, move them, send them now; on a running service."""


@scheduled.command(
    "list",
    epilog=help_end(
        "postdate scheduled list reminders",
        "postdate scheduled list shop/eu/orders --key customer-17 --limit 100",
        "postdate scheduled list reminders --from 2027-01-15T08:00:00Z --until 2027-01-15T09:00:00Z --json",
    ),
)
@click.argument("topic")
@filter_options
@subscription_option
@click.option("--limit", type=click.IntRange(1), default=LIST_LIMIT, show_default=True, help="How many at most.")
@click.option(
    "--payload",
    "has_payload",
    is_flag=True,
    help="Payloads too, as text, compressed ones by their size; with --json in base64, compressed ones as they are.",
)
@json_option("messages and next, as GET .../scheduled answers")
@on_service
def list_scheduled(
    api: ScheduleApi,
    topic: str,
    subscription: str | None,
    limit: int,
    has_payload: bool,
    is_json: bool,
    **filters: Any,
) -> None:
    """List the messages of TOPIC that are still to come, in order of their times."""
    asked = {**fields_of_filters(**filters), "subscription": subscription, "payload": has_payload}
    found: list[Json] = []
    after: str | None = None
    for page in api.pages(f"{topic_path(topic)}/scheduled/list", asked, limit=limit):
        found += page["messages"]
        after = page["next"]
    shown: list[Table | str] = ["Nothing is scheduled"]
    if found:
        now_ms = time.time_ns() // 1_000_000
        shown = [message_table(found, now_ms), *message_notes(found, is_more=after is not None)]
    _tell(is_json, {"messages": found, "next": after}, *shown)


@scheduled.command(
    epilog=help_end(
        "postdate scheduled count reminders",
        "postdate scheduled count reminders --key anna",
        "postdate scheduled count reminders --from 2027-01-15T00:00:00Z --until 2027-01-16T00:00:00Z --buckets 24",
    ),
)
@click.argument("topic")
@filter_options
@subscription_option
@click.option("--buckets", type=click.IntRange(1, 1_000), default=1, show_default=True, help="Bars of a histogram.")
@json_option("the answer of GET .../scheduled/histogram")
@on_service
def count(
    api: ScheduleApi,
    topic: str,
    subscription: str | None,
    buckets: int,
    is_json: bool,
    **filters: Any,
) -> None:
    """Count the messages of TOPIC that are delayed, overdue and in hand, and say when the delayed ones are due."""
    asked = {**fields_of_filters(**filters), "subscription": subscription, "buckets": buckets}
    path = f"{topic_path(topic)}/scheduled/histogram"
    answer = api.look(path, asked)
    bars = None
    if not is_json and buckets > 1 and answer["delayed"] and asked.keys().isdisjoint(("from", "until")):
        begin_ms, end_ms, number = round_span(answer["nextDueMs"], answer["lastDueMs"], buckets)
        span = {"from": time_field(begin_ms), "until": time_field(end_ms)}
        bars = api.look(path, {**asked, **span, "buckets": number})
    _tell(is_json, answer, *count_lines(answer, bars))


_NOTHING_CHANGES: Final = "no message of these ids, or no match, is scheduled"
_NOTHING_MOVES: Final = f"{_NOTHING_CHANGES}, or all are due already"

_changing = in_order(
    click.argument("topic"),
    click.argument("ids", nargs=-1, metavar="[ID]..."),
    filter_options,
    click.option("--all", "is_all", is_flag=True, help="Every scheduled message of the topic."),
    subscription_option,
    confirmation_options,
    json_option("the answer of the service"),
)


@scheduled.command(
    epilog=help_end(
        "postdate scheduled cancel reminders 12:7 12:9",
        "postdate scheduled cancel reminders --own-id order-17",
        "postdate scheduled cancel reminders --key anna --dry-run",
        "postdate scheduled cancel reminders --property campaign=spring --yes",
        wrong=_NOTHING_CHANGES,
    ),
)
@_changing
@on_service
def cancel(api: ScheduleApi, **asked: Any) -> None:
    """Cancel messages of TOPIC: no consumer gets them any more. Name them by ID, or by key, property or time."""
    _change(api, "cancel", "cancelled", {}, **asked)


@scheduled.command(
    epilog=help_end(
        "postdate scheduled reschedule reminders 12:7 --at 2027-01-15T08:00:00Z",
        "postdate scheduled reschedule reminders --key anna --shift 1h",
        "postdate scheduled reschedule reminders --all --shift -5m --yes",
        wrong=_NOTHING_MOVES,
    ),
)
@_changing
@click.option("--at", "deliver_at_ms", type=TIME_OF_MESSAGES, help="The new time: ISO 8601, +2h or milliseconds.")
@click.option("--delay", "delay_ms", type=SPAN, help="The new time, from now: 90s, 5m, 2h, 3d.")
@click.option("--shift", "shift_ms", type=SIGNED_SPAN, help="How much later; with a minus, earlier.")
@click.option(
    "--operation-id", help="Repeat a shift that had no answer, by the id of its error: none is shifted twice."
)
@on_service
def reschedule(
    api: ScheduleApi,
    deliver_at_ms: int | None,
    delay_ms: int | None,
    shift_ms: int | None,
    operation_id: str | None,
    **asked: Any,
) -> None:
    """Give messages of TOPIC another time. Exactly one of the old and the new message is delivered."""
    deliver_at = None if deliver_at_ms is None else time_field(deliver_at_ms)
    times = {"deliverAtMs": deliver_at, "delayMs": delay_ms, "shiftMs": shift_ms}
    given = {name: value for name, value in times.items() if value is not None}
    if len(given) != 1:
        raise click.UsageError("give one of --at, --delay and --shift")
    if operation_id is not None and shift_ms is None:
        raise click.UsageError("--operation-id is of a --shift: repeat every other change as it is")
    _change(api, "reschedule", "rescheduled", given, operation_id=operation_id, **asked)


@scheduled.command(
    "deliver-now",
    epilog=help_end(
        "postdate scheduled deliver-now reminders 12:7",
        "postdate scheduled deliver-now reminders --until 2027-01-15T08:00:00Z --dry-run",
        wrong=_NOTHING_MOVES,
    ),
)
@_changing
@on_service
def deliver_now(api: ScheduleApi, **asked: Any) -> None:
    """Let messages of TOPIC be due at once."""
    _change(api, "deliver-now", "delivered", {}, **asked)


def _change(
    api: ScheduleApi,
    what: str,
    verb: str,
    new_time: Json,
    *,
    topic: str,
    ids: tuple[str, ...],
    is_all: bool,
    subscription: str | None,
    is_dry_run: bool,
    is_sure: bool,
    is_json: bool,
    operation_id: str | None = None,
    **filters: Any,
) -> None:
    """Count the selected messages, ask for confirmation where there is more than one, and change them."""
    selection = fields_of_filters(**filters)
    given = [bool(ids), bool(selection), is_all]
    if not any(given):
        raise click.UsageError("say which messages: by ID, by --own-id, --key, --property, --from, --until, or --all")
    if sum(given) > 1:
        raise click.UsageError("IDs, --all, and conditions such as --key exclude each other: give one of them")
    if ids:
        selection["messageIds"] = list(ids)
    if is_all:
        selection["all"] = True
    body = selection if subscription is None else selection | {"subscription": subscription}
    operation_id = operation_id or new_operation_id()
    path = f"{topic_path(topic)}/scheduled"
    try:
        with _progress(api, path, verb, operation_id):
            answer = api.post(f"{path}/{what}", body | new_time | {"dryRun": True}, operation_id=operation_id)
        if not is_dry_run:
            if changing_count(answer, verb) > 1 and not is_sure:
                click.confirm(f"{change_line(answer, verb, 'will be ')}. Go on?", abort=True, err=True)
            with _progress(api, path, verb, operation_id):
                answer = api.post(f"{path}/{what}", body | new_time, operation_id=operation_id)
    except ServiceUnavailableError as error:
        if "shiftMs" not in new_time:
            raise
        hint = f"repeat it with --operation-id {operation_id}, and no message is shifted twice"
        raise ServiceUnavailableError(f"{error}; {hint}", operation_id=operation_id) from error
    except ScheduleRequestError as error:
        if not error.finds_nothing(selection):
            raise
        nothing = {"matched": 0, "alreadyDue": 0, "inHand": 0, "unknown": len(ids)}
        _tell(is_json, nothing, "Nothing that is scheduled is meant")
        sys.exit(EXIT_CODE_WRONG)
    moved = [f"{old} is {new} now" for old, new in answer.get("ids", {}).items()]
    _tell(is_json, answer, change_line(answer, verb, "would be " if is_dry_run else ""), *moved)
    if not answer.get(verb, changing_count(answer, verb)):
        sys.exit(EXIT_CODE_WRONG)


@contextmanager
def _progress(
    api: ScheduleApi, path: str, verb: str, operation_id: str, *, interval_s: float = PROGRESS_INTERVAL_S
) -> Iterator[None]:
    """Show the progress of a change that takes long while it runs, its search first."""
    is_over = threading.Event()

    def follow() -> None:
        steps: Steps | None = None
        stage, done = "", 0
        with ExitStack() as shown:
            while not is_over.wait(interval_s):
                try:
                    found = api.operation(operation_id)
                    if found["finished"]:
                        return
                    if steps is None:
                        steps = shown.enter_context(Steps().shown())
                    now = "searched" if found["searching"] else verb
                    if now != stage:
                        total = api.look(f"{path}/histogram", {"buckets": 1})["total"] if now == "searched" else None
                        steps.begin(now, found["matched"] if total is None else total)
                        stage, done = now, 0
                except SchedulingError:
                    continue
                now_done = int(found["searched" if stage == "searched" else "done"])
                steps.advance(now_done - done)
                done = now_done

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        is_over.set()
        follower.join()


_holding = in_order(
    click.argument("topic"),
    paused_subscription_option,
    confirmation_options,
    json_option("the subscriptions and whether they are paused"),
)


@click.command(
    epilog=help_end(
        "postdate pause reminders", "postdate pause reminders --subscription me --note 'a broken release' --yes"
    ),
)
@_holding
@click.option("--note", help="Why, for others to read.")
@on_service
def pause(api: ScheduleApi, note: str | None, **asked: Any) -> None:
    """Hold the messages of TOPIC, also across restarts, until it is resumed. Consumers keep their messages."""
    _hold(api, "pause", {} if note is None else {"note": note}, **asked)


@click.command(
    epilog=help_end("postdate resume reminders", "postdate resume reminders --subscription me --rate 100 --yes"),
)
@_holding
@click.option("--rate", type=float, help="Messages a second, until what was held is delivered. Default: no limit.")
@on_service
def resume(api: ScheduleApi, rate: float | None, **asked: Any) -> None:
    """Deliver the messages of TOPIC that a pause holds, in order within each key, all at once or at a rate."""
    _hold(api, "resume", {"ratePerSecond": rate}, **asked)


def _hold(
    api: ScheduleApi,
    what: str,
    body: Json,
    *,
    topic: str,
    subscription: str | None,
    is_dry_run: bool,
    is_sure: bool,
    is_json: bool,
) -> None:
    """Count the backlog that is meant, ask for confirmation if it has several entries, and pause or resume."""
    path, rate = topic_path(topic), body.get("ratePerSecond")
    if is_dry_run or not is_sure:
        backlog, delayed = backlog_meant(api.get(path), subscription, what)
        if is_dry_run:
            found = api.look(f"{path}/scheduled/histogram", {"subscription": subscription, "buckets": 1})
            figures = {name: found[name] for name in ("delayed", "overdue", "inHand")} | {"backlog": backlog}
            _tell(is_json, figures, backlog_sentence(backlog, delayed, what, rate))
            return
        if backlog > 1:
            click.confirm(f"{backlog_sentence(backlog, delayed, what, rate)} Go on?", abort=True, err=True)
    answer = api.post(f"{path}/{what}", body | {"subscription": subscription})
    _tell(is_json, answer, *pause_lines(answer))


@click.command(
    epilog=help_end(
        "postdate explain reminders --id 12:7",
        "postdate explain reminders --key anna --subscription me",
        wrong="no such message is there",
    ),
)
@click.argument("topic")
@click.option("--id", "message_id", help="The message, as a listing names it.")
@own_id_option
@click.option("--key", help="The messages of this key.")
@subscription_option
@json_option("the answer of GET .../explain")
@on_service
def explain(
    api: ScheduleApi,
    topic: str,
    message_id: str | None,
    own_id: str | None,
    key: str | None,
    subscription: str | None,
    is_json: bool,
) -> None:
    """Say where a message of TOPIC is, and why it is not delivered yet."""
    named = {"messageId": message_id, "id": own_id, "key": key}
    given = {name: value for name, value in named.items() if value is not None}
    if len(given) != 1:
        raise click.UsageError("give one of --id, --own-id and --key")
    try:
        answer = api.look(f"{topic_path(topic)}/explain", {**given, "subscription": subscription})
    except ScheduleRequestError as error:
        if not error.finds_nothing(named):
            raise
        _tell(is_json, {"sentence": str(error), "messages": []}, str(error))
        sys.exit(EXIT_CODE_WRONG)
    _tell(is_json, answer, *explanation_lines(answer))


@click.command(epilog=help_end("postdate trail", "postdate trail reminders --limit 5", "postdate trail --json"))
@click.argument("topic", required=False)
@click.option("--limit", type=click.IntRange(1), default=LIST_LIMIT, show_default=True, help="How many at most.")
@json_option("the answer of GET /postdate/v1/trail")
@on_service
def trail(api: ScheduleApi, topic: str | None, limit: int, is_json: bool) -> None:
    """List who changed what and when, the newest change first; with TOPIC, of this topic alone."""
    answer = api.get(f"/trail?{urlencode({'topic': topic or '', 'limit': limit})}")
    _tell(is_json, answer, trail_table(answer["entries"]) if answer["entries"] else "Nothing is recorded")


@click.command(
    epilog=help_end(
        "postdate keys orders billing customer-17",
        "postdate keys shop/eu/orders billing customer-17 --url http://127.0.0.1:8081",
        "postdate keys orders billing AAECAw== --base64",
    )
)
@click.argument("topic")
@click.argument("subscription")
@click.argument("key")
@click.option("--base64", "is_base64", is_flag=True, help="KEY is bytes, written as base64.")
@json_option("the answer of the service's keyStatus")
@on_service
def keys(api: ScheduleApi, topic: str, subscription: str, key: str, is_base64: bool, is_json: bool) -> None:
    """Show the hash and the owner of KEY in a Key_Shared subscription, and the messages that block it."""
    asked = {"subscription": subscription, "keyBase64" if is_base64 else "key": key}
    status = api.look(f"{topic_path(topic)}/keys", asked)
    _tell(is_json, status, *key_lines(status))
