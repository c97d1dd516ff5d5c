"""The program `postdate`: the list of its commands, each of which is imported when it is run.

So the list shows at once, the service starts without the libraries of bulk jobs, and where an extra of the package is
missing, only the commands that need it refuse.
"""

from importlib import import_module
from keyword import iskeyword
from typing import Any, Final

import click

from postdate.command_line.endings import EXIT_CODE_INTERRUPTED, help_end, refuse, say
from postdate.command_line.extras import install_advice

COMMANDS: Final = {
    "backup": ("postdate.scheduling.backup_command", "Back up a running service to a folder or to S3."),
    "bundles": ("postdate.broker.cli.bundle_commands", "Divide a data folder into bundles of topics."),
    "check": ("postdate.snapshot_tools.check", "Say whether log and index are whole."),
    "cluster": ("postdate.scheduling.cluster_command", "Show which service has which bundle, and move one."),
    "config": ("postdate.broker.cli.service_commands", "Print the configuration in force, as a broker.conf."),
    "consume": ("postdate.scheduling.message_commands", "Print messages when they are due, and acknowledge them."),
    "demo": ("postdate.demo.cli", "Do the main job before your eyes, with a crash in the middle."),
    "explain": ("postdate.scheduling.cli", "Say where a message is, and why it is not delivered yet."),
    "import": ("postdate.moving_in.cli", "Bring over what waits in Redis, at a Celery broker or at a Pulsar."),
    "keys": ("postdate.scheduling.cli", "Show the consumer of a key, and what blocks the key."),
    "ledger": ("postdate.pipeline.cli.main", "Work with the log of a service."),
    "pause": ("postdate.scheduling.cli", "Hold the messages of a topic until it is resumed."),
    "pipeline": ("postdate.pipeline.cli.main", "Make and change the delayed index in bulk, on Spark."),
    "publish": ("postdate.scheduling.message_commands", "Publish a message, to be delivered at its time."),
    "restore": ("postdate.broker.cli.restore_command", "Restore a backup to a data folder."),
    "resume": ("postdate.scheduling.cli", "Deliver the messages of a topic that a pause holds."),
    "scheduled": ("postdate.scheduling.cli", "Look at scheduled messages, cancel, move and send them."),
    "serve": ("postdate.broker.cli.service_commands", "Run the service."),
    "snapshots": ("postdate.snapshot_tools.cli", "Look at the snapshots of the delayed index, and copy them."),
    "token": ("postdate.broker.cli.token_commands", "Make keys for clients, and tokens that they sign."),
    "subscriptions": ("postdate.scheduling.topic_commands", "List, make, empty, move and remove subscriptions; peek."),
    "trail": ("postdate.scheduling.cli", "List who cancelled, moved, paused, deleted and granted."),
    "topics": ("postdate.scheduling.topic_commands", "List topics: what is delayed, overdue, in hand; make, remove."),
}
"""By name: the module that defines a command under this name, and what the list of commands says of it."""


class LazyCommands(click.Group):
    """A group that imports a command when it is asked for, and lists them without any import."""

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke a command; Ctrl-C outside of its own handling ends it in the same way."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("interrupted")
            ctx.exit(EXIT_CODE_INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        try:
            # Python's own words end with an underscore as names.
            name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
            command = getattr(import_module(COMMANDS[cmd_name][0]), name)
        except ModuleNotFoundError as error:
            advice = install_advice(error.name, [cmd_name])
            if advice is None:
                raise
            refuse(advice)
        assert isinstance(command, click.Command), f"{cmd_name} is no command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=help_end("postdate demo", "postdate serve --config config/broker.conf", "postdate serve --help"),
)
@click.version_option(package_name="postdate", prog_name="postdate")
def postdate() -> None:
    """Delayed delivery: published now, delivered at its time, in key order, to one consumer per key."""
