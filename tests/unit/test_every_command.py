"""Every command of `postdate` with wrong, empty and right input: what it prints, where, and its exit code.

The table is `tests.helpers.command_cases`; a new command without cases there fails here. Right input for jobs on Spark
is in `tests/integration/pipeline/test_every_command_on_spark.py`.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from postdate.command_line.extras import install
from postdate.command_line.program import postdate
from postdate.demo.process import free_ports
from tests.helpers.command_cases import CASES, REFUSED, Case
from tests.helpers.command_data import copied, make_folders, words_of

ROOT = Path(__file__).parents[2]


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Give every command that can be run as it stands, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield " ".join((*path, name)), command


COMMANDS = dict(leaves(postdate))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folders")
    make_folders(root)
    return root


@pytest.fixture
def names(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    return copied(folders, tmp_path)


@pytest.fixture(scope="module")
def refusal_folders(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """One copy for all refusals, which change nothing."""
    folder = tmp_path_factory.mktemp("refusals")
    return folder, copied(folders, folder)


@pytest.fixture
def refusal_names(refusal_folders: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    folder, names = refusal_folders
    monkeypatch.chdir(folder)
    # A job that starts Spark before it has looked at its input names this place instead.
    monkeypatch.setenv("JAVA_HOME", str(folder / "no-java"))
    return names


def run(words: list[str]) -> Result:
    return CliRunner().invoke(postdate, words, catch_exceptions=False)


def test_every_command_has_cases() -> None:
    """The table says of each command, also a new one, how it ends with wrong and with right input."""
    assert set(CASES) == set(COMMANDS)
    for command, cases in CASES.items():
        assert cases.refused, command
        assert bool(cases.right) != bool(cases.shown_by), command


def test_what_is_shown_elsewhere_is_shown() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))

    assert [
        cases.shown_by for cases in CASES.values() if f"def {cases.shown_by}(" not in sources and cases.shown_by
    ] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_how_it_ends_and_speaks_json(command: str) -> None:
    """Exit codes and examples in the help, `--json` among the options."""
    help_text = run([*command.split(), "--help"]).output

    codes = help_text.partition("Exit codes:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in codes] in (["0", "2", "130"], ["0", "1", "2", "130"])
    assert help_text.partition("Examples:\n")[2].count("postdate") >= 1
    assert "--json" in [name for option in COMMANDS[command].params for name in option.opts]
    wrong = [case for case in CASES[command].right if case.code == 1]
    assert not wrong or len(codes) == 4
    # A service that serves is stopped by Ctrl-C in order.
    assert codes[-1].endswith("stopped by Ctrl-C") == (command != "serve")


REFUSALS = [case for cases in CASES.values() for case in cases.refused]


@pytest.mark.parametrize("case", REFUSALS, ids=[case.words for case in REFUSALS])
def test_wrong_and_empty_input_is_refused_in_one_line(case: Case, refusal_names: dict[str, str]) -> None:
    """On stderr, with exit code 2 and nothing on stdout; nothing is made or changed, and Spark is not started."""
    result = run(words_of(case.words, refusal_names))

    assert (result.exit_code, result.stdout) == (REFUSED, ""), result.output
    assert "Traceback" not in result.stderr
    assert case.says in result.stderr
    lines = result.stderr.splitlines()
    is_usage = lines[0].startswith("Usage: ")
    assert len(lines) == 1 or is_usage, lines
    assert lines[0].startswith("postdate: ") or is_usage
    assert list(Path(refusal_names["tmp"]).iterdir()) == []
    assert list(Path(refusal_names["empty"]).iterdir()) == []


RIGHTS = [case for cases in CASES.values() for case in cases.right if not cases.needs_spark]


@pytest.mark.slow
@pytest.mark.parametrize("is_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("case", RIGHTS, ids=[case.words for case in RIGHTS])
def test_right_input_is_done(case: Case, is_json: bool, names: dict[str, str]) -> None:
    """With the figures for people or for programs on stdout, and times in ISO 8601."""
    result = run([*words_of(case.words, names), *(["--json"] if is_json else [])])

    assert result.exit_code == case.code, result.output
    assert "Traceback" not in result.stderr
    assert case.says.format(**names) in result.stdout
    if is_json:
        json.loads(result.stdout)
    times = re.findall(r"\d{4}-\d\d-\d\d[ T]\S*", result.stdout)
    assert all(re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z"?,?', time) for time in times)


@pytest.mark.slow
def test_serve_says_where_it_listens(tmp_path: Path) -> None:
    """As one line of JSON, if asked so, and its log too; SIGTERM ends it with 0."""
    port, web_port = free_ports(2)
    settings = {"dataDirectory": tmp_path / "data", "brokerServicePort": port, "webServicePort": web_port}
    settings["logFormat"] = "json"
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with subprocess.Popen(
        [sys.executable, "-m", "postdate", "serve", "--json", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)

    assert said == {
        "serviceUrl": f"pulsar://127.0.0.1:{port}",
        "serviceUrlTls": None,
        "webServiceUrl": f"http://127.0.0.1:{web_port}",
        "webServiceUrlTls": None,
        "dataDirectory": str((tmp_path / "data").resolve()),
    }
    assert process.returncode == 0
    assert [json.loads(line)["message"] for line in stderr.splitlines()] == ["stopping", "stopped"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [
        ("click", ["serve"], "service"),
        ("click", [], "service"),
        ("click", ["pipeline", "rebuild", "data"], "spark"),
        ("rich", ["snapshots", "list"], "service"),
        ("aiohttp", ["serve"], "service"),
        ("pyspark", ["pipeline", "rebuild", "data"], "spark"),
        ("pyarrow", ["ledger", "export", "data", "out"], "export"),
        ("pulsar", ["demo"], "demo"),
        ("redis", ["import", "celery", "redis://127.0.0.1:1", "--to", "reminders"], "redis"),
        ("rich", ["demo"], "demo"),
        ("rocksdict", ["ledger", "repair", "data", "--yes"], "service"),
    ],
)
def test_a_command_says_which_extra_it_needs(missing: str, words: list[str], extra: str, names: dict[str, str]) -> None:
    """Each optional package may be missing, beginning with a core install, which has no click."""
    program = f"import sys; sys.modules[{missing!r}] = None; from postdate.command_line.main import main; main()"

    result = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )

    assert result.stderr == f"postdate: {missing} is not installed: {install(extra)}\n"
    assert (result.returncode, result.stdout) == (2, "")


def test_the_extras_are_those_of_the_package() -> None:
    """Every module that is looked up is one that the extra installs."""
    import tomllib

    from postdate.command_line.extras import MODULES_OF_EXTRAS

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    modules_of = {
        "google-crc32c": "google_crc32c",
        "prometheus-client": "prometheus_client",
        "pulsar-client": "pulsar",
        "PyJWT[crypto]": "jwt",
    }

    def brought_by(extra: str) -> set[str]:
        packages = {re.split(r"[<>=]", one)[0] for one in declared[extra]}
        inner = {package for package in packages if package.startswith("postdate[")}
        modules = {modules_of.get(package, package) for package in packages - inner}
        return modules.union(*(brought_by(package[len("postdate[") : -1]) for package in inner))

    assert set(MODULES_OF_EXTRAS) == set(declared) - {"dev"}
    for extra, modules in MODULES_OF_EXTRAS.items():
        assert set(modules) - {"botocore"} == brought_by(extra), extra


_INTERRUPTED = """
import os, signal, sys

interrupted = sys.argv.pop(1)

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == interrupted:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv[0] = "postdate"
from postdate.command_line.main import main
main()
"""


def heed_interrupts() -> None:
    """Heed SIGINT: a shell lets what it runs in the background ignore it, and a new process inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "click",
        "postdate.pipeline.publishing.publication",
        "numpy",
        "postdate.pipeline.cli.main",
        "postdate.pipeline.jobs.log_rebuild",
        "pyspark",
    ],
)
def test_an_early_interrupt_leaves_no_traceback(module: str, names: dict[str, str]) -> None:
    """Modules are being imported then, of the project or of a library: neither may show a traceback."""
    command = [sys.executable, "-c", _INTERRUPTED, module, "pipeline", "rebuild", names["data"]]

    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120, preexec_fn=heed_interrupts
    )

    assert result.returncode in (130, -signal.SIGINT)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["postdate"] * (result.returncode == 130)


def test_each_command_and_each_extra_is_on_a_page() -> None:
    from postdate.command_line.extras import MODULES_OF_EXTRAS

    pages = "\n".join(path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))))
    assert [name for name in COMMANDS if f"postdate {name}" not in pages] == []
    assert [extra for extra in MODULES_OF_EXTRAS if f"`{extra}`" not in pages] == []
