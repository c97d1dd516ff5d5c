"""The command `postdate demo` with its options; the run itself is in `postdate.demo.screen`."""

import sys
from pathlib import Path

import click

from postdate.broker.cli.common import refusing
from postdate.command_line.endings import help_end
from postdate.command_line.output import json_option


@click.command(
    epilog=help_end(
        "postdate demo",
        "postdate demo --keep",
        "postdate demo --folder /tmp/postdate-demo",
        wrong="the verdict is not clean",
    )
)
@click.option("--keep", is_flag=True, help="Keep the data and the logs. Default: only if the verdict is not clean.")
@click.option(
    "--folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the data and the logs go, and stay. Default: a temporary folder.",
)
@json_option("the verdict, while events go to stderr")
@refusing
def demo(keep: bool, folder: Path | None, is_json: bool) -> None:
    """Do the main job before your eyes, with a crash in the middle, in under a minute.

    Starts a service of its own on free ports, publishes 20,000 messages of 500 keys with delays from 1 to 20 seconds
    through the real client, kills the service with SIGKILL halfway and starts it again, lets a consumer leave and one
    join, and judges what arrived.
    """
    # Imported late: `--help` needs no client and no screen.
    from postdate.demo.screen import run_demo

    sys.exit(run_demo(keep=keep, folder=folder, is_json=is_json))
