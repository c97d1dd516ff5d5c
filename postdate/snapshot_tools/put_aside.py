"""`postdate snapshots put-aside`: show the damaged folders of snapshots that were put aside, and remove them."""

import click
from rich.markup import escape

from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.snapshot_storages import snapshots_folder
from postdate.command_line.endings import help_end
from postdate.command_line.options import yes_option
from postdate.command_line.output import counted, json_option, print_json, size
from postdate.snapshot_tools.options import make_console, on_config
from postdate.snapshot_tools.report import plain_table
from snapshot_storage.rocksdb.put_aside import PutAside, put_aside_folders, remove_put_aside


@click.command(
    "put-aside",
    short_help="Show damaged folders that were put aside.",
    epilog=help_end(
        "postdate snapshots put-aside",
        "postdate snapshots put-aside --remove --data /var/lib/postdate",
        "postdate snapshots put-aside --remove --yes --json",
    ),
)
@on_config
@click.option("--remove", "is_removing", is_flag=True, help="Delete them, after asking; also beside a running service.")
@yes_option("With --remove: do not ask.")
@json_option("a list of objects, sizes in bytes")
def put_aside(config: BrokerConfig, *, is_removing: bool, is_sure: bool, is_json: bool) -> None:
    """Show the folders of snapshots in RocksDB that were put aside because they are damaged, with their sizes.

    Nothing reads them any more: their index was read from the log again. They stay until --remove deletes them.
    """
    if not config.data_directory.is_dir():
        raise click.UsageError(f"there is no folder {config.data_directory}")
    found = put_aside_folders(snapshots_folder(config))
    total = f"{counted(len(found), 'folder')}, {size(sum(one.size_bytes for one in found))}"
    if not is_json:
        _print(found)
    if found and is_removing:
        if not is_sure:
            click.confirm(f"{total}: deleted for good. Go on?", abort=True, err=True)
        for one in found:
            remove_put_aside(one)
    if is_json:
        print_json([{"path": str(one.path), "bytes": one.size_bytes, "removed": is_removing} for one in found])
    elif not found:
        click.echo("No folder was put aside.")
    else:
        click.echo(f"Removed {total}." if is_removing else f"{total}; --remove deletes them.")


def _print(found: list[PutAside]) -> None:
    if not found:
        return
    table = plain_table(("folder", "left"), ("size", "right"))
    for one in found:
        table.add_row(escape(str(one.path)), size(one.size_bytes))
    make_console().print(table)
