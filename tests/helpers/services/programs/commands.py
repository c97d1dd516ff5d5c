"""Run commands of `postdate` one after the other in a process of their own, which starts Java once for all of them.

Reads a list of command lines as JSON from stdin, and writes how each ended: its exit code, stdout and stderr.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from click.testing import CliRunner
from pyspark.sql import SparkSession

from postdate.command_line.program import postdate


def main() -> None:
    # Each command stops its session; kept, the next one finds it with its workers, which costs a tenth.
    SparkSession.stop = lambda _session: None  # type: ignore[method-assign]
    results = []
    for words in json.load(sys.stdin):
        result = CliRunner().invoke(postdate, words)
        trace = "" if result.exception is None else repr(result.exception)
        results.append({"code": result.exit_code, "stdout": result.stdout, "stderr": result.stderr, "exception": trace})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
