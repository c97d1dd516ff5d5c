"""The options of the commands on scheduled messages: the service, the selected messages, and the confirmation."""

import re
from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click

from managed_ledger.errors import NameNotFoundError
from managed_ledger.names import find_topic
from managed_ledger.positions.value_types import Json
from postdate.command_line.endings import refuse, refusing_of
from postdate.command_line.milliseconds import may_be_seconds
from postdate.command_line.options import Command, dry_run_option, in_order, yes_option
from postdate.command_line.output import iso
from postdate.command_line.times import TIME_OF_MESSAGES
from postdate.scheduling.api import ScheduleApi
from postdate.scheduling.errors import ScheduleRequestError, SchedulingError

refusing = refusing_of(SchedulingError)

_TOKEN = re.compile(r"[A-Za-z0-9_.=-]+")


def token_of_params(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Read a token in Pulsar's notation; the errors do not repeat it."""
    del parameter
    if value is None:
        return None
    kind, separator, rest = value.partition(":")
    if not separator or kind not in ("token", "file"):
        raise click.BadParameter("must be token:TOKEN or file:///PATH")
    try:
        token = rest if kind == "token" else Path(rest.removeprefix("//")).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no token"
        raise click.BadParameter(f"{value} cannot be read: {reason}") from None
    if not _TOKEN.fullmatch(token.strip()):
        raise click.BadParameter("it is no token")
    return token.strip()


def _of_connection(option: str, *declared: str, **options: Any) -> Callable[[Command], Command]:
    """Return an option that can be given as an environment variable: `--trust-certs` as `POSTDATE_TRUST_CERTS`."""
    variable = f"POSTDATE_{option.removeprefix('--').replace('-', '_').upper()}"
    return click.option(option, *declared, envvar=variable, show_envvar=True, **options)


_service_options = in_order(
    _of_connection(
        "--url", default="http://127.0.0.1:8080", show_default=True, help="The web port of the running service."
    ),
    _of_connection(
        "--auth-params",
        "token",
        metavar="PARAMS",
        callback=token_of_params,
        help="The caller's token, as for pulsar-admin: token:TOKEN or file:///PATH of a token.",
    ),
    _of_connection("--trust-certs", metavar="FILE", help="Authorities to trust for https. Default: the system's."),
    _of_connection("--client-cert", metavar="FILE", help="The caller's certificate, if the service asks for one."),
    _of_connection("--client-key", metavar="FILE", help="The private key of the certificate, without a password."),
)


def on_service(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a connection, and pass a `ScheduleApi`; refuse in one line."""

    @wraps(command)
    def run(
        *args: Any,
        url: str,
        token: str | None,
        trust_certs: str | None,
        client_cert: str | None,
        client_key: str | None,
        **kwargs: Any,
    ) -> Any:
        api = ScheduleApi(
            url,
            token=token,
            tls_trust_certs_file=trust_certs,
            tls_certificate_file=client_cert,
            tls_private_key_file=client_key,
        )
        try:
            return command(api, *args, **kwargs)
        except ScheduleRequestError as error:
            if error.status != HTTPStatus.NOT_FOUND or error.field != "topic":
                raise
            refuse(nearest_topics(api, str(kwargs.get("to") or kwargs["topic"])) or str(error))

    return _service_options(refusing(run))


def nearest_topics(api: ScheduleApi, topic: str) -> str:
    """Return a refusal with the names nearest to a missing topic's, of those that the caller may see; else nothing."""
    try:
        find_topic(topic, api.topic_names(topic))
    except NameNotFoundError as error:
        return str(error)
    except SchedulingError:
        pass
    return ""


subscription_option = click.option("--subscription", help="Only for this subscription. Default: all that delay.")
paused_subscription_option = click.option(
    "--subscription", help="Only this subscription. Default: all of the topic, also those that do not delay."
)
confirmation_options = in_order(
    dry_run_option("print the number of messages"),
    yes_option("Do not ask before more than one message is changed."),
)
time_options = in_order(
    click.option(
        "--from",
        "from_ms",
        type=TIME_OF_MESSAGES,
        help="Only messages due at this time or later: ISO 8601, from now as +10m or -1h, or milliseconds.",
    ),
    click.option("--until", "until_ms", type=TIME_OF_MESSAGES, help="Only messages due before this time."),
)
own_id_option = click.option(
    "--own-id", metavar="ID", help="Only the message that was scheduled with this id of yours."
)
filter_options = in_order(
    own_id_option,
    click.option("--key", help="Only messages of this key."),
    click.option(
        "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Only messages with it; repeatable."
    ),
    time_options,
)


def fields_of_filters(
    own_id: str | None, key: str | None, properties: tuple[str, ...], from_ms: int | None, until_ms: int | None
) -> Json:
    """Return the selection that these options make, as the fields of a request's body."""
    found: Json = {}
    if own_id is not None:
        found["id"] = own_id
    if key is not None:
        found["key"] = key
    if properties:
        found["property"] = list(properties)
    if from_ms is not None:
        found["from"] = time_field(from_ms)
    if until_ms is not None:
        found["until"] = time_field(until_ms)
    return found


def time_field(time_ms: int) -> int | str:
    """Return a time as a request has it: one before 1990 written out, as its number would be taken for seconds."""
    return iso(time_ms) if may_be_seconds(time_ms) else time_ms
