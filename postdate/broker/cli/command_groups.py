"""Commands that other installed rooms bring to `postdate`, found by their entry points.

The service must start without the libraries of bulk jobs. So a room names its command groups in `pyproject.toml` under
`postdate.commands`, and a group is imported when it is run or listed. Groups of this room that need further libraries
are loaded the same way.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from postdate.command_line.endings import EXIT_CODE_INTERRUPTED, refuse, say
from postdate.command_line.extras import install_advice

ENTRY_POINT_GROUP = "postdate.commands"


class InstalledCommands(click.Group):
    """A group with its own commands and those of entry points; of two with one name its own is taken."""

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke a command; Ctrl-C outside of its own handling ends it in the same way."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("interrupted")
            ctx.exit(EXIT_CODE_INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_found()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        found = _found()
        if own is not None or cmd_name not in found:
            return own
        try:
            command = found[cmd_name].load()
        except ModuleNotFoundError as error:
            advice = install_advice(error.name, [cmd_name])
            if advice is None:
                raise
            refuse(advice)
        assert isinstance(command, click.Command), f"{found[cmd_name].value} is no command"
        return command


def _found() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
