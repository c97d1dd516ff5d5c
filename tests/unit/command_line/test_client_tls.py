"""Files of a caller's TLS: each fault ends a command with one line that names the file."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from postdate.command_line.program import postdate
from postdate.scheduling.errors import ScheduleArgumentError
from postdate.scheduling.scheduler import Scheduler
from tests.helpers.certificates import Authority, CertificateFiles, encrypted_key

COMMANDS = (["topics"], ["keys", "orders", "billing", "key"])


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return Authority(tmp_path).client("anna", "anna")


def other_key(files: CertificateFiles) -> None:
    other = Authority(files.key.parent, "other").client("anna", "other")
    files.key.write_bytes(other.key.read_bytes())


FAULTS: dict[str, tuple[Callable[[CertificateFiles], object], str]] = {
    "no certificate": (lambda files: files.certificate.unlink(), "anna.pem cannot be read: No such file or directory"),
    "a text": (lambda files: files.certificate.write_text("a text"), "anna.pem holds no certificate in PEM"),
    "an empty file": (lambda files: files.certificate.write_text(""), "anna.pem holds no certificate in PEM"),
    "no key": (lambda files: files.key.unlink(), "anna.key cannot be read: No such file or directory"),
    "a text as key": (lambda files: files.key.write_text("a text"), "anna.key is not the private key of"),
    "a key of another": (other_key, "anna.key is not the private key of"),
    "a key with a password": (lambda files: encrypted_key(files.key), "anna.key is not the private key of"),
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_certificate_that_cannot_be_used_is_named(fault: str, command: list[str], files: CertificateFiles) -> None:
    damage, told = FAULTS[fault]
    damage(files)
    shown = ["--client-cert", str(files.certificate), "--client-key", str(files.key)]

    result = CliRunner().invoke(postdate, [*command, "--url", "https://127.0.0.1:1", *shown])

    assert result.exit_code == 2
    assert told in result.stderr
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--trust-certs", "none.pem cannot be read: No such file or directory"),
        ("--client-cert", "a client's certificate and its private key must be given together"),
        ("--client-key", "a client's certificate and its private key must be given together"),
    ],
)
def test_one_option_alone_is_checked(option: str, told: str, command: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(
        postdate, [*command, "--url", "https://127.0.0.1:1", option, str(tmp_path / "none.pem")]
    )

    assert result.exit_code == 2
    assert told in result.stderr
    assert result.output.count("\n") == 1


def test_a_scheduler_checks_the_files_of_its_publishing_where_its_web_port_has_no_tls(files: CertificateFiles) -> None:
    with pytest.raises(ScheduleArgumentError, match="given together"):
        Scheduler(
            "pulsar+ssl://127.0.0.1:1", "http://127.0.0.1:1", "orders", tls_certificate_file=str(files.certificate)
        )
