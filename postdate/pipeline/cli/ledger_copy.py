"""The command `postdate ledger copy`: a log from one place to another, with no service.

data folder ─► data folder        checkpoints of its bundles, each file compared with its checksum
data folder ─► backup             as `postdate backup` makes one of a running service
backup ─► data folder             as `postdate restore`
data folder ─► prefix on S3       the first checkpoint of each bundle, for services to start on
prefix on S3 ─► data folder       tables and log of each bundle, also beside services
"""

import click

from managed_ledger.bundle_settings import DEFAULT_CLUSTER
from postdate.command_line.endings import help_end
from postdate.command_line.output import counted, json_option, print_json, size
from postdate.command_line.progress import bytes_bar
from postdate.pipeline.cli.common import refusing, wall_clock_ms


@click.command(
    epilog=help_end(
        "postdate ledger copy data /mnt/other/data",
        "postdate ledger copy data s3://bucket/postdate  # then: dataDirectory=s3://bucket/postdate",
        "postdate ledger copy s3://bucket/postdate data",
        "postdate ledger copy --backup data s3://bucket/postdate-backup",
    )
)
@click.argument("source")
@click.argument("target")
@click.option("--backup", "to_backup", is_flag=True, help="TARGET becomes a backup, if it is empty or missing.")
@click.option("--replace", is_flag=True, help="Replace the backup of another log in TARGET.")
@click.option(
    "--cluster-name",
    "cluster",
    metavar="NAME",
    default=DEFAULT_CLUSTER,
    show_default=True,
    help="The clusterName of the services that are to start on TARGET, where it is on S3.",
)
@json_option()
@refusing
def copy(source: str, target: str, to_backup: bool, replace: bool, cluster: str, is_json: bool) -> None:
    """Copy the log in SOURCE to TARGET: messages, cursors, policies and grants, of all bundles; every byte is checked.

    One of both is a data folder, and its service must be stopped. The other one is a second data folder, a
    dataDirectory on S3 (s3://BUCKET/PREFIX, also beside the services that use it), or a backup, which is a folder or on
    S3. A TARGET that is empty or missing becomes a data folder or a dataDirectory on S3, whole or not at all; a backup
    stays one. The same command goes on with what was cut off. The delayed index is read from the log again by a start
    on the copy. Credentials of S3 are those that boto3 finds.
    """
    from postdate.index.log_copy import copy_log

    with bytes_bar("copied") as advance:
        copied = copy_log(
            source,
            target,
            now_ms=wall_clock_ms(),
            on_bytes=advance,
            replaces_other=replace,
            to_backup=to_backup,
            cluster=cluster,
        )
    if is_json:
        print_json({"target": target, **copied._asdict()})
        return
    new = "" if copied.new_bytes == copied.bytes else f", {size(copied.new_bytes)} of it new"
    click.echo(
        f"{target} has the log of {source}: {counted(copied.bundles, 'bundle')}, "
        f"{size(copied.bytes)} in {counted(copied.files, 'file')}{new}, all whole"
    )
