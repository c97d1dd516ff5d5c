"""`postdate restore`: make a data folder of a backup, with no service."""

import os
import time
from pathlib import Path

import click

from managed_ledger.objects.place_checkpoints import fetch_bundles
from postdate.broker.cli.common import config_options, configure_logging, refusing
from postdate.broker.configuration.config import load_config
from postdate.command_line.endings import help_end
from postdate.command_line.output import iso, json_option, print_json, size
from postdate.command_line.progress import bytes_bar
from postdate.index.object_places import objects_at


@click.command(
    epilog=help_end(
        "postdate restore /mnt/backup/postdate /var/lib/postdate",
        "postdate restore s3://bucket/postdate-backup data --config config/broker.conf",
        "postdate check --data data  # after postdate restore: reads every byte of the log",
    ),
)
@click.argument("target")
@click.argument("folder", metavar="DATA_FOLDER", type=click.Path(path_type=Path, file_okay=False))
@config_options
@json_option("what was restored")
@refusing
def restore(target: str, folder: Path, config_path: Path | None, overrides: tuple[str, ...], is_json: bool) -> None:
    """Restore the backup in TARGET to DATA_FOLDER, which must be empty or missing, and check every byte.

    The folder is a data folder then. A start on it reads the delayed index from the log. Messages that were published
    after the backup are not there, and those that were acknowledged after it are delivered again. For S3 the
    credentials are those of the configuration.
    """
    configure_logging("error")
    began_s = time.monotonic()
    config = load_config(config_path, environment=os.environ, overrides=overrides)
    objects = objects_at(target, config.snapshots_s3)
    with bytes_bar("restored") as advance:
        manifests = fetch_bundles(objects, folder, on_bytes=advance)
    seconds = time.monotonic() - began_s
    made_at_ms = min(one.made_at_ms for one in manifests)
    files, size_bytes = sum(len(one.tables) for one in manifests), sum(one.size_bytes for one in manifests)
    if is_json:
        answer = {"folder": str(folder), "made": iso(made_at_ms), "madeMs": made_at_ms, "bundles": len(manifests)}
        print_json(answer | {"files": files, "bytes": size_bytes, "seconds": round(seconds, 3)})
        return
    of_bundles = "" if len(manifests) == 1 else f" of {len(manifests)} bundles"
    what = f"{size(size_bytes)} in {files:,} files{of_bundles}"
    click.echo(f"{folder} has the backup of {iso(made_at_ms)}: {what}, all whole, in {seconds:.1f} s")
