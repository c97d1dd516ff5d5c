"""List the benchmarks, or run one: `python -m benchmarks [NAME [ARGUMENTS]]`."""

import ast
import runpy
import sys
from pathlib import Path
from typing import Final

NAMES: Final = (
    "service",
    "workers",
    "objects",
    "failover",
    "tracker",
    "tracker_memory",
    "many_topics",
    "dispatcher",
    "scheduled",
    "merge_curve",
    "snapshots",
    "soak",
    "spark",
)


def describe(name: str) -> str:
    """Return the first line of what a benchmark says of itself, without running it."""
    source = Path(__file__).with_name(f"{name}.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def main(arguments: list[str]) -> int:
    """List or run."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("python -m benchmarks NAME [ARGUMENTS]   (--help after the name tells its arguments)\n")
        for name in NAMES:
            print(f"  {name:<14}{describe(name)}")
        return 0
    if arguments[0] not in NAMES:
        sys.stderr.write(f"there is no benchmark {arguments[0]!r}; there are {', '.join(NAMES)}\n")
        return 2
    name, *sys.argv[1:] = arguments
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
