"""`postdate cluster`: which service has which bundle, and moving one."""

import click
from rich.table import Table

from managed_ledger.positions.value_types import Json
from postdate.command_line.endings import help_end
from postdate.command_line.output import json_option, make_console, print_json
from postdate.scheduling.api import ScheduleApi
from postdate.scheduling.command_options import on_service

_json = json_option("the answer of GET /postdate/v1/cluster")


@click.group(
    epilog=help_end(
        "postdate cluster status",
        "postdate cluster unload 0x00000000_0x40000000",
        "postdate cluster transfer 0x00000000_0x40000000 10.0.0.7:8080",
    )
)
def cluster() -> None:
    """Show services and bundles, and move a bundle: a range of topics' names, with a log of its own."""


@cluster.command(epilog=help_end("postdate cluster status", "postdate cluster status --json"))
@_json
@on_service
def status(api: ScheduleApi, is_json: bool) -> None:
    """List the services, what they take and deliver, and the service of each bundle."""
    _show(api.get("/cluster"), is_json=is_json)


@cluster.command(epilog=help_end("postdate cluster unload 0x00000000_0x40000000"))
@click.argument("bundle")
@_json
@on_service
def unload(api: ScheduleApi, bundle: str, is_json: bool) -> None:
    """Move BUNDLE to any other service; where there is none, close it and open it again. Clients follow."""
    _show(api.post("/cluster/unload", {"bundle": bundle}), is_json=is_json)


@cluster.command(epilog=help_end("postdate cluster transfer 0x00000000_0x40000000 10.0.0.7:8080"))
@click.argument("bundle")
@click.argument("service")
@_json
@on_service
def transfer(api: ScheduleApi, bundle: str, service: str, is_json: bool) -> None:
    """Move BUNDLE to SERVICE, by the name that `status` shows. Clients follow."""
    _show(api.post("/cluster/unload", {"bundle": bundle, "to": service}), is_json=is_json)


def _show(answer: Json, *, is_json: bool) -> None:
    if is_json:
        print_json(answer)
        return
    console = make_console()
    services = Table("service", "clients connect to", "bundles", "messages/s", box=None)
    for one in answer["services"]:
        url = one["serviceUrl"] or one["serviceUrlTls"]
        services.add_row(one["name"], url, str(len(one["bundles"])), f"{one['messagesPerSecond']:,.1f}")
    bundles = Table("bundle", "service", box=None)
    for one in answer["bundles"]:
        bundles.add_row(one["bundle"], one["owner"] or "none is known")
    console.print(services)
    console.print(bundles)
