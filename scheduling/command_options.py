"""The options of the commands on scheduled messages: the service, the selected messages, and the confirmation."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from broker.cli.common import auth_params_option
from command_line.endings import refusing_of
from command_line.options import dry_run_option, in_order, yes_option
from command_line.times import TIME
from managed_ledger.value_types import Json
from scheduling.api import ScheduleApi
from scheduling.errors import SchedulingError

refusing = refusing_of(SchedulingError)


def on_service(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--url` and `--auth-params`, and pass a `ScheduleApi`; refuse in one line."""

    @wraps(command)
    def run(*args: Any, url: str, token: str | None, trust_certs: str | None, **kwargs: Any) -> Any:
        return command(ScheduleApi(url, token=token, tls_trust_certs_file=trust_certs), *args, **kwargs)

    return in_order(
        click.option(
            "--url", default="http://127.0.0.1:8080", show_default=True, help="The web port of the running service."
        ),
        auth_params_option,
        click.option("--trust-certs", metavar="FILE", help="Authorities to trust for https. Default: the system's."),
    )(refusing(run))


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
        "--from", "from_ms", type=TIME, help="Only messages due at this time or later: ISO 8601 or milliseconds."
    ),
    click.option("--until", "until_ms", type=TIME, help="Only messages due before this time."),
)
filter_options = in_order(
    click.option("--key", help="Only messages of this key."),
    click.option(
        "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Only messages with it; repeatable."
    ),
    time_options,
)


def fields_of_filters(key: str | None, properties: tuple[str, ...], from_ms: int | None, until_ms: int | None) -> Json:
    """Return the selection that these options make, as the fields of a request's body."""
    found: Json = {}
    if key is not None:
        found["key"] = key
    if properties:
        found["property"] = list(properties)
    if from_ms is not None:
        found["from"] = from_ms
    if until_ms is not None:
        found["until"] = until_ms
    return found


def query_of(fields: Json) -> list[tuple[str, str]]:
    """Return such fields as the query of a URL, without those that are None."""
    pairs = [(name, str(value)) for name, value in fields.items() if name != "property" and value is not None]
    return pairs + [("property", one) for one in fields.get("property", ())]
