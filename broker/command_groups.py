"""Commands that other installed rooms bring to `postdate`, found by their entry points.

The service knows nothing of bulk jobs and must start without what they need. So a room names its command groups in
`pyproject.toml` under `postdate.commands`, and they are imported when somebody asks for them. So are groups of this
room whose libraries the service has no use for.
"""

from importlib.metadata import EntryPoint, entry_points

import click

ENTRY_POINT_GROUP = "postdate.commands"


class InstalledCommands(click.Group):
    """A group with its own commands and those of entry points; its own win."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See base."""
        return sorted({*super().list_commands(ctx), *_found()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See base."""
        own = super().get_command(ctx, cmd_name)
        found = _found()
        if own is not None or cmd_name not in found:
            return own
        command = found[cmd_name].load()
        assert isinstance(command, click.Command), f"{found[cmd_name].value} is no command"
        return command


def _found() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
