"""`postdate backup`: a backup of a running service, which makes it itself."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from postdate.command_line.endings import help_end
from postdate.command_line.output import json_option, print_json, size
from postdate.command_line.progress import bytes_bar
from postdate.scheduling.api import ScheduleApi, new_operation_id
from postdate.scheduling.command_options import on_service
from postdate.scheduling.errors import ScheduleRequestError, SchedulingError

TIMEOUT_S: Final = 24 * 3600.0
_PROGRESS_INTERVAL_S: Final = 0.5


@click.command(
    epilog=help_end(
        "postdate backup /mnt/backup/postdate",
        "postdate backup s3://bucket/postdate-backup --url https://postdate.example.org:8443",
        "postdate backup 's3://bucket/backup?endpoint=http://127.0.0.1:9000&path_style=true'",
        "postdate restore /mnt/backup/postdate /var/lib/postdate  # with the service stopped",
    ),
)
@click.argument("target")
@click.option("--replace", is_flag=True, help="Replace the backup of another log, or of the one before a restore.")
@json_option("the answer of POST /postdate/v1/backup")
@on_service
def backup(api: ScheduleApi, target: str, replace: bool, is_json: bool) -> None:
    """Back up the log of a running service to TARGET: an absolute path on its machine, or s3://BUCKET/PREFIX.

    Messages, cursors, policies and grants, as of one moment. TARGET has one backup, the last; only tables that it has
    not yet are stored. A backup that is cut off leaves the one before. Credentials of S3 are those of the service's
    configuration. For super users.
    """
    operation_id = new_operation_id()
    with _progress(api, operation_id):
        answer = api.post(
            "/backup", {"target": target, "replace": replace}, operation_id=operation_id, timeout_s=TIMEOUT_S
        )
    if answer["missing"]:
        error = f"The backup is not whole: no service had {', '.join(answer['missing'])} at that moment"
        raise ScheduleRequestError(503, error, field=None, advice="Repeat it")
    if is_json:
        print_json(answer)
        return
    new = f"{size(answer['newBytes'])} in {answer['newFiles']:,} files new"
    click.echo(
        f"{target} has a backup of {answer['made']}: {size(answer['bytes'])} in {answer['files']:,} files, {new}"
    )


@contextmanager
def _progress(api: ScheduleApi, operation_id: str) -> Iterator[None]:
    """Show how many bytes are stored, while the body waits for the answer."""
    is_over = threading.Event()

    def follow() -> None:
        with bytes_bar("stored") as advance:
            while not is_over.wait(_PROGRESS_INTERVAL_S):
                try:
                    found = api.operation(operation_id)
                except SchedulingError:
                    continue
                advance(found["done"], found["matched"])

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        is_over.set()
        follower.join()
