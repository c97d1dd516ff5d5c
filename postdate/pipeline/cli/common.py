"""The common part of the commands of `cli`: the errors they refuse with, their options, and a quiet session."""

import logging
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from managed_ledger.errors import LedgerError
from postdate.command_line.endings import explain_os_error, refusing_of
from postdate.command_line.options import dry_run_option, in_order
from postdate.command_line.output import json_option
from postdate.command_line.times import TIME
from postdate.index.bundle_choice import bundle_data, bundle_option
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.s3.location import is_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT_SECONDS_MAX = (2**63 - 1) // 1_000
INT_MAX = 2**31 - 1
"""The largest number that Spark's own options and 32-bit columns hold."""

_SPARK_MODULES = ("pyspark", "py4j")
_OURS = re.compile(r"(?:managed_ledger|snapshot_storage|pipeline)(?:\.\w+)*\.\w+Error: (.+)")
_PYTHONS = re.compile(r"^(?!Py4J)[A-Z]\w*Error: .+", re.MULTILINE)


def wall_clock_ms() -> int:
    """Give the wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def explain(error: BaseException) -> str | None:
    """Say what an error is about that Spark has wrapped, or the operating system gave; None for others."""
    if isinstance(error, OSError):
        return explain_os_error(error)
    if not _is_sparks(error):
        return None
    return " ".join([cause_of(str(error)), *getattr(error, "__notes__", ())])


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Leave out the traceback that Py4J logs, past its own logger, when Ctrl-C comes while it waits for Java."""
    return not record.getMessage().startswith("KeyboardInterrupt while sending command")


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _SPARK_MODULES


def cause_of(text: str) -> str:
    r"""Return what one of our own errors says in the text of one of Spark's, else Python's error, else the first line.

    >>> cause_of("[STREAM_FAILED] Failed\nmanaged_ledger.errors.StoreLockedError: it is in use\n\tat x")
    'it is in use'
    >>> cause_of("An error occurred\nTraceback\n  File x\nOSError: [Errno 28] No space left on device\n\n\tat org.x")
    'OSError: [Errno 28] No space left on device'
    >>> cause_of("[STREAM_FAILED] Query failed\nat x")
    '[STREAM_FAILED] Query failed'
    """
    ours = _OURS.search(text)
    if ours is not None:
        return ours.group(1)
    pythons = _PYTHONS.search(text)
    return text.strip().partition("\n")[0] if pythons is None else pythons.group()


refusing = refusing_of(LedgerError, SnapshotStorageError, ValueError, RuntimeError, explain=explain)
"""Turns the errors that an operator can do something about into one line and exit code 2."""


topics_option = click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Only this topic, by its whole or short name; repeatable.",
)
master_option = click.option(
    "--master", default="local[*]", show_default=True, help="Where Spark runs; spark-submit's own wins."
)
segment_options = in_order(
    click.option(
        "--segment-seconds",
        type=click.IntRange(0, SEGMENT_SECONDS_MAX),
        default=300,
        show_default=True,
        help="Longest time span of a segment.",
    ),
    click.option(
        "--segment-indexes",
        type=click.IntRange(-1, INT_MAX),
        default=5_000,
        show_default=True,
        help="Most indexes of a segment, or -1.",
    ),
)


def job_options(
    *,
    has_index: bool = True,
    has_topics: bool = True,
    has_cursors: bool = True,
    needs_cursors: bool = False,
    has_dry_run: bool = False,
    now: str | None = None,
    json: str = "one object",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add what the jobs on a service's data have in common: DATA, `--master`, `--json` and refusals in one line.

    Args:
        has_index: Whether there is `--index`.
        has_topics: Whether there is `--topic`, repeatable.
        has_cursors: Whether there is `--subscription`, repeatable.
        needs_cursors: Whether at least one must be named.
        has_dry_run: Whether there is `--dry-run`.
        now: The meaning of the time that `--now` gives, for the help text; None where there is no such option.
        json: The content of the JSON, for the help text.
    """
    index = "Snapshots are here: a folder or s3://BUCKET/PREFIX. Default: in DATA."
    cursors = "Subscription; repeatable." if needs_cursors else "Only subscriptions of this name; repeatable."

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        command = master_option(json_option(json)(refusing(of_bundle(command))))
        if has_dry_run:
            command = dry_run_option("count")(command)
        if now is not None:
            command = click.option("--now", "now_ms", type=TIME, default=wall_clock_ms, help=f"{now} Default: now.")(
                command
            )
        if has_cursors:
            command = click.option(
                "--subscription", "cursors", multiple=True, required=needs_cursors, metavar="NAME", help=cursors
            )(command)
        if has_topics:
            command = topics_option(command)
        if has_index:
            command = click.option("--index", metavar="INDEX", help=index)(command)
        return click.argument("data")(bundle_option(command))

    return add


def of_bundle(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command's `data` be the folder of the bundle that `--bundle`, or a topic, says.

    One that takes `bundle` itself knows a dataDirectory on S3, and gets what was written where that is one.
    """

    @wraps(command)
    def run(*, data: str, bundle: str | None, topics: tuple[str, ...] = (), **others: Any) -> Any:
        wanted = signature(command).parameters
        named: dict[str, Any] = {"topics": topics} if "topics" in wanted else {}
        if "bundle" in wanted:
            named["bundle"] = bundle if is_s3(data) else None
        if named.get("bundle") is None:
            data = bundle_data(data, bundle, topics)
        return command(data=data, **named, **others)

    return run


@contextmanager
def new_session(master: str) -> Iterator["SparkSession"]:
    """Give the session that `spark-submit` has prepared, or one of our own, and stop it.

    Output of our own Java, and of the Python workers that it starts, goes to a file that is deleted in the end; where
    Spark fails for a reason of its own, the file stays, and the error names it.
    """
    from postdate.pipeline.sources.session import any_session, end_java

    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_no_interrupt)
    handler = signal.getsignal(signal.SIGINT)
    with tempfile.NamedTemporaryFile(prefix="postdate-spark-", suffix=".log", delete=False) as log:
        path = Path(log.name)
        try:
            spark = any_session(master, log)
            # Spark's own handler asks Java to cancel everything, which fails where Java is gone.
            signal.signal(signal.SIGINT, handler)
            yield spark
            spark.stop()
        except Exception as error:
            if _is_sparks(error) and not _OURS.search(str(error)):
                error.add_note(f"(Spark's own log: {path})")
                path = Path()
            raise
        except BaseException:
            # A job that was interrupted half way may hold threads which wait for Java.
            end_java()
            raise
        finally:
            if path != Path():
                with suppress(OSError):
                    path.unlink()
