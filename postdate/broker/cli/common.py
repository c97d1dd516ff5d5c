"""Shared parts of the service's own commands: the options of a configuration, logging, and errors of an operator.

Parts shared by the commands of every room are in `command_line`.
"""

import errno
import json
import logging
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from managed_ledger.errors import LedgerError
from postdate.broker.configuration.config import ConfigError
from postdate.broker.errors import BrokerError, ServiceStartError
from postdate.command_line.endings import refusing_of
from postdate.command_line.options import in_order
from snapshot_storage.errors import SnapshotStorageError


class OneLineFormatter(logging.Formatter):
    """Keeps each message on one line: a text from a client must not look like a record of its own."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 (logging's)
        """Return the time in ISO 8601 and UTC, as all times of `postdate`."""
        time = datetime.fromtimestamp(record.created, UTC)
        return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Write line breaks as escapes."""
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


class JsonFormatter(OneLineFormatter):
    """Writes each record as one JSON object on one line: time, level, logger, message, and the exception if any.

    Args:
        origin: The process of several that writes, as a field of its own; empty for one that is alone.
    """

    def __init__(self, origin: str = "") -> None:
        super().__init__()
        self._origin = {"process": origin} if origin else {}

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        found = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._origin,
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)


class MalformedRequests(logging.Filter):
    """Logs a request that is no HTTP in one line: any caller can send one, and a traceback helps no operator."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # A type is named by a string: the commands that need no web server do not import one.
        if error is not None and type(error).__module__ == "aiohttp.http_exceptions":
            record.exc_info = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg, record.args = "A request on the web port is no HTTP: %s", (type(error).__name__,)
        return True


_MALFORMED_REQUESTS: Final = MalformedRequests()


def configure_logging(level: str, log_format: str = "text", *, origin: str = "") -> None:
    """Send every record from `level` on to stderr, as `text` or `json`; called again, it takes the place of before.

    Args:
        level: The lowest level that is logged.
        log_format: `text` or `json`.
        origin: The process of several that writes, such as `worker 1`; empty for one that is alone.
    """
    handler = logging.StreamHandler(sys.stderr)
    where = f"{origin} %(name)s" if origin else "%(name)s"
    text = OneLineFormatter(f"%(asctime)s %(levelname)s {where}: %(message)s")
    handler.setFormatter(JsonFormatter(origin) if log_format == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # APScheduler reports every run of every job at INFO; failures are logged by the jobs' own supervisor.
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").addFilter(_MALFORMED_REQUESTS)


def _explain(error: BaseException) -> str | None:
    if not isinstance(error, OSError):
        return None
    if error.errno == errno.EADDRINUSE:
        return f"{error}; choose free ports with --set brokerServicePort=... and --set webServicePort=..."
    # An error of a port names no file.
    is_of_port = error.filename is None and error.errno in (errno.EADDRNOTAVAIL, errno.EACCES)
    if isinstance(error, socket.gaierror) or is_of_port:
        return f"{error}; see bindAddress, brokerServicePort and webServicePort"
    return str(error)


refusing = refusing_of(
    ConfigError,
    BrokerError,
    ServiceStartError,
    LedgerError,
    SnapshotStorageError,
    explain=_explain,
)
"""Turns the errors that an operator can do something about into one line and exit code 2."""


config_options = in_order(
    click.option(
        "--config",
        "config_path",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="A broker.conf. Default: the built-in defaults, which are those of config/broker.conf.",
    ),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one key; repeatable. Wins over the environment, which wins over the file.",
    ),
)
