"""`postdate import`: bring over what waits in Redis, at a Celery broker or at a Pulsar."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click

from managed_ledger.names import full_topic_name
from postdate.command_line.client_tls import ClientTlsError
from postdate.command_line.endings import EXIT_CODE_WRONG, help_end, refusing_of
from postdate.command_line.options import dry_run_option, in_order
from postdate.command_line.output import counted, json_option, print_json
from postdate.moving_in.celery_source import waiting_tasks
from postdate.moving_in.importing import Imported, StoredBefore, import_messages
from postdate.moving_in.messages import Found, MovingInError
from postdate.moving_in.pulsar_source import AdminPort, backlog, connected_client
from postdate.moving_in.redis_source import connected, sorted_set
from postdate.scheduling.api import ScheduleApi, topic_path
from postdate.scheduling.command_options import nearest_topics, on_service, token_of_params
from postdate.scheduling.errors import ScheduleRequestError
from postdate.scheduling.tables import printable

_LEFT: Final = "done, but messages are left at the source: the reasons are named"
_REDIS: Final = "postdate import redis-sorted-set redis://127.0.0.1:6379/0 reminders --score-unit s --to reminders"
_CELERY: Final = "postdate import celery redis://127.0.0.1:6379/0 --to tasks"
_PULSAR: Final = "postdate import pulsar pulsar://old:6650 orders --subscription billing --admin-url http://old:8080"

_options = in_order(
    click.option(
        "--state",
        type=click.Path(dir_okay=False, path_type=Path),
        default="postdate-import.db",
        show_default=True,
        help="The file that remembers what is stored at a service, so that a second run brings nothing twice.",
    ),
    dry_run_option("count what would be stored"),
    json_option("how many are stored, were stored before, and are left"),
    on_service,
    refusing_of(MovingInError, ClientTlsError),
)
_to = click.option("--to", required=True, metavar="TOPIC", help="The topic that the messages come to.")


@click.group("import", epilog=help_end(f"{_REDIS} --dry-run", _CELERY, _PULSAR))
def import_() -> None:
    """Bring over what waits in Redis, at a Celery broker or at a Pulsar, each message once.

    A run that was stopped goes on where it was if it is run again with the same --state. The topic needs a
    subscription, which gets the messages.
    """


@import_.command(
    "redis-sorted-set",
    epilog=help_end(f"{_REDIS} --dry-run", f"{_REDIS} --key-field customer", wrong=_LEFT),
)
@click.argument("redis_url", metavar="URL")
@click.argument("key")
@_to
@click.option(
    "--score-unit",
    type=click.Choice(["s", "ms"]),
    required=True,
    help="The unit of scores, which are since 1970.",
)
@click.option("--key-field", metavar="FIELD", help="The field of members of JSON that is the key of the message.")
@_options
def redis_sorted_set(
    api: ScheduleApi, redis_url: str, key: str, score_unit: str, key_field: str | None, **options: Any
) -> None:
    """Schedule the members of the sorted set KEY for their scores, each as a payload. The set stays as it is."""
    with connected(redis_url) as client:
        _import(api, sorted_set(client, key, score_unit, key_field), **options)


@import_.command(epilog=help_end(f"{_CELERY} --dry-run", f"{_CELERY} --queue celery --queue mail --all", wrong=_LEFT))
@click.argument("broker_url", metavar="URL")
@_to
@click.option("--queue", "queues", multiple=True, default=["celery"], show_default=True, help="A queue; repeatable.")
@click.option("--all", "takes_all", is_flag=True, help="Also tasks without an ETA, which are due at once.")
@click.option("--prefix", default="", help="What Celery's global_keyprefix puts before each key.")
@_options
def celery(
    api: ScheduleApi, broker_url: str, queues: tuple[str, ...], takes_all: bool, prefix: str, **options: Any
) -> None:
    """Schedule the tasks with an ETA or a countdown of a broker on Redis. They stay there: stop its workers first.

    The id of a message is its task's, the payload the arguments as Celery wrote them: [args, kwargs, ...] in JSON. The
    property `task` names the task.
    """
    if broker_url.startswith(("amqp", "pyamqp")):
        raise MovingInError(
            "a broker of AMQP shows a message only by taking it, and never what its workers hold: let these tasks run"
            " out there, and schedule new ones here"
        )
    with connected(broker_url) as client:
        _import(api, waiting_tasks(client, queues, prefix, takes_all=takes_all), **options)


@import_.command(
    epilog=help_end(
        f"{_PULSAR} --dry-run", f"{_PULSAR} --to shop/eu/orders --source-auth-params file:///run/old", wrong=_LEFT
    )
)
@click.argument("service_url")
@click.argument("topic")
@click.option("--subscription", required=True, help="The subscription there whose backlog comes over.")
@click.option("--admin-url", required=True, help="The admin port there, which knows when messages are due.")
@click.option("--to", metavar="TOPIC", help="The topic that the messages come to. Default: of the same name.")
@click.option(
    "--source-auth-params",
    "source_token",
    metavar="PARAMS",
    callback=token_of_params,
    help="The token there: token:TOKEN or file:///PATH of a token.",
)
@click.option("--source-trust-certs", metavar="FILE", help="Authorities to trust there. Default: the system's.")
@_options
def pulsar(
    api: ScheduleApi,
    service_url: str,
    topic: str,
    subscription: str,
    admin_url: str,
    to: str | None,
    source_token: str | None,
    source_trust_certs: str | None,
    **options: Any,
) -> None:
    """Schedule the backlog of a subscription, delayed or not. What is stored here is acknowledged there.

    The consumers of the subscription have to be stopped. A dry run acknowledges nothing.
    """
    to = to or topic
    if (admin_url.rstrip("/"), full_topic_name(topic)) == (api.admin_url, full_topic_name(to)):
        raise MovingInError(f"{to} would be imported into itself: name another topic as --to")
    known = (source_token, source_trust_certs)
    admin = AdminPort(admin_url, *known)
    with connected_client(service_url, *known) as client:
        _import(api, backlog(client, admin, topic, subscription), to=to, **options)


def _import(api: ScheduleApi, found: Found, *, to: str, state: Path, is_dry_run: bool, is_json: bool) -> None:
    _check_target(api, to)
    path = f"{topic_path(to)}/scheduled"
    post = None if is_dry_run else lambda lines: api.post_lines(path, lines)
    with closing(found), StoredBefore(state, api.admin_url, full_topic_name(to), is_dry_run=is_dry_run) as before:
        imported = import_messages(found, post, before, _show)
    if is_json:
        left = [{"reason": one, "count": count, "names": imported.names[one]} for one, count in imported.left.items()]
        print_json({"stored": imported.stored, "storedBefore": imported.stored_before, "left": left})
    else:
        verb = "would be stored" if is_dry_run else "stored"
        before_too = f", {imported.stored_before:,} before" if imported.stored_before else ""
        click.echo(f"{counted(imported.stored, 'message')} {verb} in {to}{before_too}")
    for reason, count in () if is_json else imported.left.items():
        names = imported.names[reason]
        more = f" and {count - len(names):,} more" if count > len(names) else ""
        click.echo(printable(f"{counted(count, 'message')} left, as {reason}: {', '.join(names)}{more}"))
    if imported.left:
        sys.exit(EXIT_CODE_WRONG)


def _check_target(api: ScheduleApi, to: str) -> None:
    """Refuse what the service would refuse of any message, before the source is read, also in a dry run."""
    advice = f"`postdate subscriptions create {to} NAME` makes one that does"
    try:
        there = api.get(f"{topic_path(to)}/subscriptions")["subscriptions"]
    except ScheduleRequestError as error:
        if error.field != "topic":
            raise
        advice = f"`postdate subscriptions create {to} NAME` makes it"
        raise MovingInError(f"{nearest_topics(api, to) or error}. {advice}") from error
    if not any(one["delays"] for one in there):
        shown = ", ".join(f"{one['name']} is {one['type']}" for one in there) or "it has none"
        raise MovingInError(f"no subscription of {to} delays ({shown}). {advice}")


def _show(imported: Imported) -> None:
    """Say on a terminal how far it is."""
    if sys.stderr.isatty():
        click.echo(f"\r{counted(imported.stored, 'message')} stored ", nl=False, err=True)
