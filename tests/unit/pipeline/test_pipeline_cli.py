"""The commands `postdate ledger` and `postdate pipeline`: found, and helpful where all fails."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from postdate.command_line.extras import install
from postdate.command_line.program import postdate as main
from postdate.index.ledger_ranges import HeaderRange
from postdate.pipeline import cli
from postdate.pipeline.logs.parquet_log import ParquetLog
from postdate.pipeline.tasks.reject_file import write_rejects
from postdate.pipeline.tasks.row_checks import REASONS, BadRow
from tests.helpers.spark.bulk_data import some_times, write_log


@pytest.mark.slow
def test_help_needs_neither_spark_nor_arrow() -> None:
    """A service without the extra `spark` can still be asked what there is."""
    program = """
import sys
sys.modules.update({"pyspark": None, "pyarrow": None})
from postdate.command_line.program import postdate as main
main(sys.argv[1:])
"""
    for arguments, exit_code, said in (
        (["pipeline", "rebuild", "--help"], 0, "Make the delayed index anew"),
        (["pipeline", "rebuild", "data"], 2, f"is not installed: {install('spark')}"),
        (["ledger", "export", "data", "out"], 2, f"is not installed: {install('export')}"),
    ):
        run = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
        assert run.returncode == exit_code, run.stderr
        assert said in run.stdout + run.stderr
        assert "Traceback" not in run.stderr


def test_a_log_is_exported_and_exported_again(tmp_path: Path) -> None:
    """The second time nothing is left to do; only the ledgers that are closed, if asked."""
    write_log(tmp_path / "data", {"a": some_times(1, 250), "b": some_times(2, 50)})
    arguments = ["ledger", "export", str(tmp_path / "data"), str(tmp_path / "out")]

    said = [
        CliRunner().invoke(main, [*arguments, *more]).output.splitlines()[-1] for more in (["--closed-only"], [], [])
    ]

    assert [line.partition(" written")[0] for line in said] == [
        "2 ledgers with 200 messages",
        "2 ledgers with 100 messages",
        "0 ledgers with 0 messages",
    ]


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    """A folder without a log, before anything is started or written."""
    for arguments in (
        ["ledger", "export", str(tmp_path), str(tmp_path / "out")],
        ["pipeline", "rebuild", str(tmp_path)],
        ["pipeline", "cancel", str(tmp_path), "--subscription", "sub", "--key", "k"],
        ["pipeline", "merge", str(tmp_path), "--buckets", "5"],
        ["pipeline", "ingest", str(tmp_path), "in", "--subscription", "sub", "--checkpoint", "c"],
    ):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2
        assert result.output.startswith("postdate: There is no log")
        assert len(result.output.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_cancellation_must_say_of_what(tmp_path: Path) -> None:
    """All messages of a subscription are not cancelled for want of an option."""
    write_log(tmp_path, {"a": some_times(1, 10)})
    for more in ([], ["--positions", "p.csv", "--key", "k"]):
        result = CliRunner().invoke(main, ["pipeline", "cancel", str(tmp_path), "--subscription", "sub", *more])
        assert result.exit_code == 2
        assert result.output.startswith("postdate: say what to cancel")


def test_rejected_rows_become_a_file(tmp_path: Path) -> None:
    """Null where there was nothing to read."""
    rows = [BadRow("t", 1, 2, None, REASONS[0]), BadRow("t", 1, 3, -2, REASONS[4])]

    write_rejects(rows, str(tmp_path / "rejects.parquet"))

    assert [BadRow(**row) for row in pq.read_table(tmp_path / "rejects.parquet").to_pylist()] == rows


LONG = "persistent://public/default/" + "予" * 40


def test_a_topic_with_a_long_name_is_exported(tmp_path: Path) -> None:
    """Quoted, 40 Japanese signs are longer than a file system's names; the list has the names, and they are read."""
    headers = write_log(tmp_path / "data", {LONG: some_times(1, 250), "b": some_times(2, 50)})
    export = str(tmp_path / "out")

    result = CliRunner().invoke(main, ["ledger", "export", str(tmp_path / "data"), export])

    assert result.output.splitlines()[-1] == f"4 ledgers with 300 messages written to {export}"
    log = ParquetLog(export)
    assert log.topics() == sorted([LONG, "b"])
    read = [
        row
        for ledger in log.ledgers([LONG])
        for row in log.read_times(HeaderRange(LONG, ledger.ledger_id, 0, ledger.entries)).to_rows()
    ]
    assert [(ledger_id, entry_id, time) for time, ledger_id, entry_id in read] == [tuple(one) for one in headers[LONG]]


def test_no_module_beside_the_program_hides_one_of_pythons() -> None:
    """`spark-submit` runs `main.py` as a script, whose folder then comes first where Python looks for modules."""
    beside = {path.stem for path in Path(cli.__path__[0]).glob("*.py")}

    assert "main" in beside
    assert not beside & sys.stdlib_module_names
