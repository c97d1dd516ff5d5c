"""The command line: what it prints, and how it refuses."""

import json
import logging
import resource
import shlex
import socket
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from click import Context
from click.testing import CliRunner, Result

from postdate.broker.cli.common import JsonFormatter, MalformedRequests, OneLineFormatter
from postdate.broker.cli.service_commands import announcement
from postdate.broker.configuration.access import TLS_PROVIDER, TOKEN_PROVIDER, AccessConfig
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.configuration.pulsar_keys import pulsar_keys
from postdate.command_line.program import COMMANDS
from postdate.command_line.program import postdate as main
from postdate.demo.process import PostdateProcess, free_ports

REPOSITORY = Path(__file__).parents[4]
CONF = str(REPOSITORY / "config/broker.conf")


def run(*words: str, environment: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, words, env=environment, catch_exceptions=False)


def refusal(*words: str, environment: dict[str, str] | None = None) -> str:
    """Run a command that must refuse, and return the one line that it says."""
    result = run(*words, environment=environment)

    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("postdate: ")
    return line.removeprefix("postdate: ")


@pytest.mark.parametrize("words", [(), ("serve",), ("config",), ("demo",)])
def test_every_help_text_has_examples(words: tuple[str, ...]) -> None:
    result = run(*words, "--help")

    assert result.exit_code == 0
    examples = result.output.partition("Examples:\n")[2].splitlines()
    assert len(examples) >= 3
    assert all("postdate" in example for example in examples)


def test_config_prints_what_is_in_force() -> None:
    result = run("config", "--config", CONF, "--set", "maxMessageSize=1000", environment={"clusterName": "here"})

    lines = result.output.splitlines()
    assert "maxMessageSize=1000" in lines
    assert "clusterName=here" in lines
    assert "brokerServicePort=6650" in lines


def test_config_can_leave_out_the_defaults() -> None:
    assert run("config", "--changed", "--set", "webServicePort=8081").output == "webServicePort=8081\n"
    assert run("config", "--changed", "--config", CONF).output == ""


@pytest.mark.parametrize("name", ["a\\b", "a\\"])
@pytest.mark.parametrize("words", [(), ("--changed",), ("--commented",)])
def test_a_backslash_is_printed_so_that_it_is_read_again(words: tuple[str, ...], name: str, tmp_path: Path) -> None:
    printed = run("config", *words, "--set", f"clusterName={name}", "--set", "webServicePort=8081").output
    (tmp_path / "mine.conf").write_text(printed)

    read = run("config", "--changed", "--json", "--config", str(tmp_path / "mine.conf")).output

    assert json.loads(read) == {"clusterName": name, "webServicePort": "8081"}


def test_config_can_print_the_table() -> None:
    result = run("config", "--table")

    assert result.output.startswith("| key | default | meaning |\n|---|---|---|\n| `bindAddress` | `127.0.0.1` | ")
    assert run("config", "--table", "--json").exit_code == 2


def test_config_can_print_the_commented_file(tmp_path: Path) -> None:
    """As it stands in the repository; with what is set in its place, it is read as what was set."""
    commented = run("config", "--commented").output
    changed = run("config", "--commented", "--set", "webServicePort=8081", "--set", "tokenSecretKey=data:,x").output

    assert commented == Path(CONF).read_text()
    assert [line for line in changed.splitlines() if line not in commented.splitlines()] == [
        "webServicePort=8081",
        "# tokenSecretKey is set, and secret",
    ]
    (tmp_path / "mine.conf").write_text(changed)
    assert run("config", "--changed", "--config", str(tmp_path / "mine.conf")).output == "webServicePort=8081\n"


@pytest.mark.parametrize("command", ["serve", "config"])
def test_a_bad_value_is_one_line_and_exit_code_2(command: str, tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerServicePort=x\n")

    expected = f"{path}:1: brokerServicePort=x: must be a whole number"
    assert refusal(command, "--config", str(path)) == expected
    assert refusal(command, "--set", "x") == "--set x: must be key=value"
    assert refusal(command, environment={"webServicePort": "y"}).startswith("environment variable webServicePort: ")


def start_refusal(*words: str) -> str:
    """Start a service that must refuse, as a process that can be ended if it does not."""
    command = [sys.executable, "-m", "postdate", "serve", "--log-level", "error", *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line.removeprefix("postdate: ")


def settings(data: Path, port: int, web_port: int) -> list[str]:
    values = {"dataDirectory": data, "brokerServicePort": port, "webServicePort": web_port}
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.slow
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_that_others_reach_is_refused(host: str, tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"# Pulsar's own.\nbindAddress={host}\n")

    line = start_refusal("--config", str(path), *settings(tmp_path / "data", *free_ports(2)))

    assert line.startswith(f"{path}:2: bindAddress={host}: other machines reach it without authentication. ")
    for mended_by in ("authenticationEnabled=true", "bindAddress=127.0.0.1", "insecureBindAllowed=true"):
        assert mended_by in line
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_stock_configuration_of_pulsar_is_refused_for_where_it_listens_alone(tmp_path: Path) -> None:
    """Everything that a file of Pulsar's own holds; with an address of this machine it starts."""
    path = tmp_path / "standalone.conf"
    stock = {one.key: one.stock[-1] if one.stock else one.default for one in pulsar_keys().values()}
    stock |= {"bindAddress": "0.0.0.0", "clusterName": "standalone"}
    path.write_text("".join(f"{key}={value}\n" for key, value in stock.items() if not key.endswith("*")))

    line = start_refusal("--config", str(path))
    service = PostdateProcess(tmp_path / "service", config=path)
    service.start()
    service.stop()

    assert f"{path}:" in line
    assert " bindAddress=0.0.0.0: other machines reach it" in line
    (warning,) = [line for line in service.log_path.read_text().splitlines() if " WARNING " in line]
    assert "keys that are ignored: not kept, as in a stock file of Pulsar's backlogQuotaDefaultLimitGB, " in warning


@pytest.mark.slow
def test_a_promise_that_is_not_kept_refuses_the_start(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("clusterName=a\nisSchemaValidationEnforced=true\n")

    assert start_refusal("--config", str(path)).startswith(
        f"{path}:2: isSchemaValidationEnforced=true: this is not kept here. Schemas are neither stored nor checked"
    )
    assert start_refusal("--set", "maxTenants=5").startswith("--set: maxTenants=5: this is not kept here. ")
    assert start_refusal("--config", str(path), "--set", "tlsKeyStore=x").startswith("--set: tlsKeyStore=x: this is ")


def test_security_is_not_ignored_whatever_is_said(tmp_path: Path) -> None:
    line = start_refusal("--set", "tlsKeyStore=x", "--set", "unsupportedConfigIgnored=true")

    assert line.startswith("--set: tlsKeyStore=x: this is not kept here. ")
    assert "unsupportedConfigIgnored" not in line


def test_config_lists_what_is_ignored_and_why(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("numIOThreads=8\nisSchemaValidationEnforced=true\nclusterName=a\nmine=5\nmaxTenants=0\n")

    result = run("config", "--config", str(path), "--ignored", "--set", "tlsKeyStorePassword=tell-no-one")

    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"{path}:1: numIOThreads=8: is ignored.",
        f"{path}:2: isSchemaValidationEnforced=true: asks for what is not kept here, and is refused unless "
        "unsupportedConfigIgnored is true. Schemas are neither stored nor checked; remove it, and let producers and "
        "consumers check them.",
        f"{path}:4: mine=5: is known neither here nor to Pulsar 4.2.",
        "--set: tlsKeyStorePassword=(secret): is ignored.",
    ]
    told = run("config", "--config", str(path), "--changed", "--set", "tlsKeyStorePassword=tell-no-one")
    assert told.stdout == "clusterName=a\n"
    assert told.stderr == "postdate: given keys that are not read, and left out: 4; --ignored names them\n"
    assert run("config", "--config", CONF, "--ignored").output == ""
    assert run("config", "--config", CONF).stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("taken", [0, 1])
def test_a_port_in_use_says_which_keys_choose_another(taken: int, tmp_path: Path) -> None:
    ports = free_ports(2)

    with socket.create_server(("127.0.0.1", ports[taken])):
        line = start_refusal(*settings(tmp_path / "data", *ports))

    assert f"'127.0.0.1', {ports[taken]}" in line
    assert line.endswith("choose free ports with --set brokerServicePort=... and --set webServicePort=...")


@pytest.mark.slow
def test_a_data_folder_that_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")

    line = start_refusal(*settings(tmp_path / "data", *free_ports(2)))

    assert line.startswith(f"The data folder {tmp_path / 'data'} cannot be opened: ")


@pytest.mark.slow
def test_the_service_announces_itself_refuses_a_second_and_stops_in_order(tmp_path: Path) -> None:
    """One real process: its announcement, a second one on its folder, and SIGTERM."""
    service = PostdateProcess(tmp_path)
    service.start()
    try:
        line = start_refusal(*settings(tmp_path / "data", *free_ports(2)))
    finally:
        code = service.stop()

    log = service.log_path.read_text()
    assert code == 0
    assert "in use by another process" in line
    assert "Postdate is ready." in log
    assert f"  Pulsar clients  {service.url}\n" in log
    assert f"{service.web_url}/health" in log
    assert "  Listens on      127.0.0.1, this machine alone\n" in log
    assert f"  Data            {(tmp_path / 'data').resolve()}\n" in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_the_service_takes_as_many_files_as_it_may_have(tmp_path: Path) -> None:
    """Each connection is one; a shell's first limit is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = [sys.executable, "-m", "postdate", "serve", *settings(tmp_path, *free_ports(2))]

    with subprocess.Popen(
        ["sh", "-c", 'ulimit -S -n 256 && exec "$@"', "sh", *command], stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        # The announcement comes when everything is set.
        assert service.stdout.readline() == "Postdate is ready.\n"
        found = resource.prlimit(service.pid, resource.RLIMIT_NOFILE)
        service.terminate()

    assert found == (hard, hard)


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_service_that_cannot_print_its_addresses_serves(tmp_path: Path, words: tuple[str, ...]) -> None:
    """/dev/full is as a file on a full disk; the exit code is that of the service."""
    command = [sys.executable, "-m", "postdate", "serve", *words, *settings(tmp_path, *free_ports(2))]

    with (
        Path("/dev/full").open("w") as full,
        subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True) as service,
    ):
        assert service.stderr is not None
        line = service.stderr.readline()
        service.terminate()
        rest = service.stderr.read()

    assert line.endswith("the addresses cannot be printed, and clients can connect: No space left on device\n")
    assert (service.returncode, "Exception" in rest) == (0, False)


@pytest.mark.parametrize(
    ("address", "advertised", "expected"),
    [
        ("127.0.0.1", None, "pulsar://127.0.0.1:6650"),
        ("0.0.0.0", None, "pulsar://127.0.0.1:6650"),
        ("::1", None, "pulsar://[::1]:6650"),
        ("::", None, "pulsar://[::1]:6650"),
        ("0.0.0.0", "mail.example.org", "pulsar://mail.example.org:6650"),
    ],
)
def test_the_announced_address_can_be_connected_to(address: str, advertised: str | None, expected: str) -> None:
    config = replace(BrokerConfig(), bind_address=address, advertised_address=advertised)

    assert f"  Pulsar clients  {expected}\n" in announcement(config)


@pytest.mark.parametrize(
    ("providers", "shown"),
    [
        ((TOKEN_PROVIDER, TLS_PROVIDER), "AuthenticationToken('TOKEN')"),
        ((TLS_PROVIDER,), "AuthenticationTLS('client.pem'"),
    ],
)
def test_the_program_to_try_authenticates_as_the_service_asks(providers: tuple[str, ...], shown: str) -> None:
    access = AccessConfig(is_authentication_enabled=True, provider_class_names=providers)

    assert f"authentication=pulsar.{shown}" in announcement(replace(BrokerConfig(), access=access))


def test_the_commands_to_try_can_be_pasted_into_a_shell() -> None:
    lines = announcement(BrokerConfig()).splitlines()
    (first,) = [line for line in lines if " -c " in line]

    python, option, program = shlex.split(first)
    postdate, demo = shlex.split(lines[-1].rpartition(": ")[2])

    assert (Path(python).resolve(), option) == (Path(sys.executable).resolve(), "-c")
    compile(program, "the program", "exec")
    # A shell would replace these signs between double quotes.
    assert not set("$`\\!") & set(program)
    assert (Path(postdate).is_file(), demo) == (True, "demo")


def test_help_is_quick() -> None:
    """The list of commands imports none of them; the service's libraries are loaded by `serve` alone."""
    listed = _modules_of("--help")
    described = _modules_of("serve", "--help")

    assert {"click", "postdate.command_line.program"} <= listed
    assert listed & {"numpy", "rich", "postdate.broker", "postdate.scheduling"} == set()
    assert "postdate.broker.cli.service_commands" in described
    assert described & {"aiohttp", "prometheus_client"} == set()


def _modules_of(*words: str) -> set[str]:
    """Return the modules that are imported when a program ends."""
    program = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from postdate.command_line.main import main
main()
"""
    command = [sys.executable, "-c", program, *words]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stderr.split())


def test_the_list_of_commands_says_of_each_what_its_own_help_says() -> None:
    context = Context(main)
    for name, (module, said) in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        # A keyword of Python cannot be the name of a function.
        attribute = "import_" if name == "import" else name
        assert (command.name, getattr(import_module(module), attribute)) == (name, command)
        first_word = said.split()[0].rstrip(",")
        assert command.get_short_help_str(200).startswith(first_word), name


def test_python_m_postdate_is_the_program() -> None:
    result = subprocess.run([sys.executable, "-m", "postdate", "--version"], capture_output=True, text=True, check=True)

    assert result.stdout == f"postdate, version {version('postdate')}\n"


def test_a_message_of_several_lines_stays_one_record() -> None:
    record = logging.LogRecord("broker", logging.INFO, "x.py", 1, "topic %s", ("a\nb\r2026 ERROR forged",), None)

    assert OneLineFormatter("%(levelname)s %(message)s").format(record) == "INFO topic a\\nb\\r2026 ERROR forged"


def test_a_record_as_json_has_its_exception_on_the_same_line() -> None:
    record = logging.LogRecord("broker", logging.ERROR, "x.py", 1, "topic %s", ("a\nb",), None)
    record.created = 1_800_000_000.0625
    error = KeyError("k\ud800")
    record.exc_info = (KeyError, error, None)

    line = JsonFormatter().format(record)

    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2027-01-15T08:00:00.062Z",
        "level": "ERROR",
        "logger": "broker",
        "message": "topic a\nb",
        "exception": "KeyError: 'k\\ud800'",
    }


def test_a_request_that_is_no_http_is_told_in_one_line_and_a_defect_with_its_traceback() -> None:
    """Any client can send one; a traceback is for defects of the service."""
    from aiohttp.http_exceptions import BadHttpMessage

    def record(error: Exception) -> logging.LogRecord:
        found = logging.LogRecord("aiohttp.server", logging.ERROR, "", 1, "Error handling request", None, None)
        found.exc_info = (type(error), error, None)
        MalformedRequests().filter(found)
        return found

    assert (record(BadHttpMessage("x")).exc_info, record(BadHttpMessage("x")).levelno) == (None, logging.WARNING)
    assert record(KeyError("x")).exc_info is not None


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--help", "topics --help", "config", "snapshots --help"])
def test_output_that_cannot_be_written_is_told_in_one_line(words: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "postdate", *words.split()]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, check=False)

    assert (ended.returncode, ended.stderr) == (
        2,
        "postdate: cannot write the output: No space left on device\n",
    )
