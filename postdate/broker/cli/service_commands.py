"""The commands of `postdate` that are the service's own: start it, see it work, show its configuration."""

import logging
import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from postdate.broker.cli.common import config_options, configure_logging, refusing
from postdate.broker.configuration.access import TOKEN_PROVIDER, AccessConfig
from postdate.broker.configuration.config import BrokerConfig, load_config, settings
from postdate.broker.configuration.sources import misspelt_in_environment
from postdate.broker.configuration.table import (
    commented_config,
    commented_lines,
    config_lines,
    config_table,
    config_values,
)
from postdate.broker.configuration.unread_keys import check_promises, unread_keys
from postdate.broker.hosts import is_wildcard
from postdate.broker.network.listening import check_bind_address, describe_listening
from postdate.command_line.endings import give_up_output, help_end
from postdate.command_line.output import json_option, print_json
from snapshot_storage.s3.location import S3Location

logger = logging.getLogger(__name__)

LOG_LEVELS = ("debug", "info", "warning", "error")


@click.command(
    epilog=help_end(
        "postdate serve",
        "postdate serve --config config/broker.conf",
        "postdate serve --set brokerServicePort=6651 --set dataDirectory=/var/lib/postdate",
        "delayedDeliveryTickTimeMillis=100 postdate serve --log-level debug",
        "postdate serve --workers 4",
        wrong="the log took no more writes, or not the last ones of a stop",
        interrupted="stopped by Ctrl-C during the start; later, that is 0",
    )
)
@config_options
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="How many processes serve the topics, each with a processor of its own: numberOfWorkers.",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Lowest level that is logged, one line per record, on stderr; as JSON with logFormat=json.",
)
@json_option("one line when the service is ready: its addresses; so with logFormat=json")
@refusing
def serve(
    config_path: Path | None, overrides: tuple[str, ...], workers: int | None, log_level: str, is_json: bool
) -> None:
    """Run the service until SIGTERM, Ctrl-C or the end of its terminal, which end it in order, with exit code 0."""
    configure_logging(log_level)
    if workers is not None:
        overrides = (*overrides, f"numberOfWorkers={workers}")
    config = load_config(config_path, environment=os.environ, overrides=overrides)
    configure_logging(log_level, config.log_format)
    for warning in (*_misspelt_variables(), *warnings_at_start(config)):
        logger.warning("%s", warning)
    # Imported late: the other commands need none of it, and it takes most of a second.
    from postdate.broker.event_loop import run_on_service_loop
    from postdate.broker.network.listener import allow_open_files
    from postdate.broker.server.prefix_start import serve_on_prefix
    from postdate.broker.server.server import serve as run_service
    from postdate.broker.server.service_manager import ServiceManager
    from postdate.broker.server.worker_start import serve_with_workers
    from postdate.broker.tuning import tune_process

    tune_process()
    allow_open_files()

    def announce() -> None:
        try:
            if is_json or config.log_format == "json":
                print_json(addresses(config), is_line=True)
            else:
                click.echo(announcement(config))
        except OSError as error:
            # Such as a full disk below the file of the output, where clients can be served all the same.
            logger.warning("the addresses cannot be printed, and clients can connect: %s", error.strerror or error)
            give_up_output()

    manager = ServiceManager.of(os.environ)
    if isinstance(config.data_directory, S3Location):
        sys.exit(run_on_service_loop(serve_on_prefix(config, announce=announce, manager=manager)))
    if config.worker_count == 1:
        sys.exit(run_on_service_loop(run_service(config, announce=announce, manager=manager)))
    # Without the folder of the call in its path, where a file could be named as a module.
    command = (sys.executable, "-P", "-m", "postdate.broker.cli.worker")
    work = serve_with_workers(config, command=command, log_level=log_level, announce=announce, manager=manager)
    sys.exit(run_on_service_loop(work))


def _misspelt_variables() -> list[str]:
    return misspelt_in_environment(os.environ, {one.key for one in settings()})


def warnings_at_start(config: BrokerConfig) -> list[str]:
    """Refuse an unsafe bind address and keys for missing features; return the warnings about the others.

    Raises:
        ConfigError: The configuration is refused.
    """
    promises = check_promises(unread_keys(config.unread), is_unsupported_ignored=config.is_unsupported_ignored)
    found = (check_bind_address(config), config.idle_keys())
    return [*(one for one in found if one is not None), *promises]


def addresses(config: BrokerConfig) -> dict[str, str | None]:
    """Return the addresses of the ports, for programs; null where a port is not served."""
    host = config.advertised_address or config.bind_address
    return {
        "serviceUrl": _url("pulsar", host, config.service_port),
        "serviceUrlTls": _url("pulsar+ssl", host, config.service_port_tls),
        "webServiceUrl": _url("http", host, config.web_port),
        "webServiceUrlTls": _url("https", host, config.web_port_tls),
        "dataDirectory": config.data_name,
    }


def announcement(config: BrokerConfig) -> str:
    """Return the text of the start: the addresses, and the first commands to try."""
    plain, tls, web, web_tls, data = addresses(config).values()
    client_urls = [url for url in (plain, tls) if url is not None]
    web_urls = [url for url in (web, web_tls) if url is not None]
    client_url = client_urls[0]
    return f"""\
Postdate is ready.
  The page        {" ".join(f"{url}/" for url in web_urls)}
  Pulsar clients  {" ".join(client_urls)}
  Health, metrics {" ".join(f"{url}/health {url}/metrics" for url in web_urls)}
  Listens on      {describe_listening(config)}
  Data            {data}
{_first_steps(client_url, config.access)}"""


def _first_steps(client_url: str, access: AccessConfig) -> str:
    """Return commands that work: Pulsar's client is an extra, which an image or a server need not have."""
    program = _first_program(client_url, access)
    if find_spec("pulsar") is None:
        return f"""\
Try, where pulsar-client is installed: a message that arrives 3 seconds after it was sent
  python -c "{program}\""""
    return f"""\
Try: a message that arrives 3 seconds after it was sent
  {_installed("python")} -c "{program}"
or, for the main job with a crash in the middle: {_installed("postdate")} demo"""


def _installed(name: str) -> str:
    """Write a program of this installation as a shell in this folder finds it."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        return name
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _first_program(client_url: str, access: AccessConfig) -> str:
    options = ""
    if access.is_authentication_enabled:
        has_tokens = TOKEN_PROVIDER in access.provider_class_names
        shown = "AuthenticationToken('TOKEN')" if has_tokens else "AuthenticationTLS('client.pem', 'client.key.pem')"
        options = f"authentication=pulsar.{shown}, "
    if client_url.startswith("pulsar+ssl:"):
        options += "tls_trust_certs_file_path='ca.pem', "
    return (
        "import pulsar; from datetime import timedelta; "
        f"client = pulsar.Client('{client_url}', {options}logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)); "
        "consumer = client.subscribe('hello', 'me', consumer_type=pulsar.ConsumerType.Shared); "
        "client.create_producer('hello').send(b'from the past', deliver_after=timedelta(seconds=3)); "
        "message = consumer.receive(); consumer.acknowledge(message); print(message.data().decode()); client.close()"
    )


def _url(scheme: str, host: str, port: int | None) -> str | None:
    return None if port is None else f"{scheme}://{_in_url(host)}:{port}"


def _in_url(host: str) -> str:
    """Write an address as URLs have it: an IPv6 address in brackets, and one to connect to for a wildcard."""
    if is_wildcard(host):
        host = "::1" if ":" in host else "127.0.0.1"
    return f"[{host}]" if ":" in host else host


@click.command(
    epilog=help_end(
        "postdate config",
        "postdate config --config config/broker.conf --changed",
        "postdate config --config /etc/pulsar/standalone.conf --ignored",
        "postdate config --commented --set maxMessageSize=1048576 > my-broker.conf",
    )
)
@config_options
@click.option("--changed", is_flag=True, help="Only keys that differ from their defaults.")
@click.option("--commented", is_flag=True, help="Every key with its meaning, as in config/broker.conf.")
@click.option(
    "--ignored", is_flag=True, help="Keys that are not read, set to another value than Pulsar's, and the reasons."
)
@click.option("--table", is_flag=True, help="A Markdown table of keys, defaults and meanings, as in the documentation.")
@json_option("one object, values by key")
@refusing
def config(
    config_path: Path | None,
    overrides: tuple[str, ...],
    changed: bool,
    commented: bool,
    ignored: bool,
    table: bool,
    is_json: bool,
) -> None:
    """Print the configuration in force, as a broker.conf."""
    if sum((changed, commented, ignored, table)) > 1:
        raise click.UsageError("--changed, --commented, --ignored and --table exclude each other")
    if is_json and (commented or table):
        raise click.UsageError("--commented and --table are no JSON")
    configure_logging("warning")
    effective = load_config(config_path, environment=os.environ, overrides=overrides)
    for warning in _misspelt_variables():
        click.echo(f"postdate: {warning}", err=True)
    unread = [str(one) for one in unread_keys(effective.unread)]
    if ignored:
        if is_json:
            print_json(unread)
        for line in [] if is_json else unread:
            click.echo(line)
        return
    if unread:
        click.echo(
            f"postdate: given keys that are not read, and left out: {len(unread)}; --ignored names them", err=True
        )
    if is_json:
        print_json(config_values(effective, changed_only=changed))
        return
    if commented:
        click.echo(commented_lines(effective), nl=False)
    elif table:
        click.echo(config_table(commented_config()), nl=False)
    else:
        click.echo(config_lines(effective, changed_only=changed), nl=False)
