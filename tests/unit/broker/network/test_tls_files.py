"""Certificates: their faults are named, and new ones are taken when they can be used."""

import logging
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from postdate.broker.configuration.config import ConfigError, load_config
from postdate.broker.configuration.tls_config import TlsConfig
from postdate.broker.network.tls import ServerTls
from postdate.broker.server.ports import open_tls
from tests.helpers.certificates import Authority, CertificateFiles, encrypted_key


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def config_of(files: CertificateFiles, **more: object) -> TlsConfig:
    return TlsConfig(certificate_path=files.certificate, key_path=files.key, **more)  # type: ignore[arg-type]


def shown_certificate(tls: ServerTls, authority: Authority) -> str:
    """Shake hands in memory with the context in force, and return the serial number that the server shows."""
    client = ssl.create_default_context(cafile=authority.path)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = tls.current().wrap_bio(to_server, to_client, server_side=True)
    client_side = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    sides = [client_side, server_side]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                continue
    certificate = client_side.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def break_certificate_missing(files: CertificateFiles, _: Authority) -> None:
    files.certificate.unlink()


def break_certificate_folder(files: CertificateFiles, _: Authority) -> None:
    files.certificate.unlink()
    files.certificate.mkdir()


def break_certificate_text(files: CertificateFiles, _: Authority) -> None:
    files.certificate.write_text("no certificate")


def break_key_missing(files: CertificateFiles, _: Authority) -> None:
    files.key.unlink()


def break_key_encrypted(files: CertificateFiles, _: Authority) -> None:
    encrypted_key(files.key)


def break_key_text(files: CertificateFiles, _: Authority) -> None:
    files.key.write_bytes(files.certificate.read_bytes())


def break_key_of_another(files: CertificateFiles, authority: Authority) -> None:
    files.key.write_bytes(authority.server("other").key.read_bytes())


def break_trust(_: CertificateFiles, authority: Authority) -> None:
    authority.path.write_text("nobody")


@pytest.mark.parametrize(
    ("damage", "key", "reason"),
    [
        (break_certificate_missing, "tlsCertificateFilePath", "cannot be read (No such file or directory); name a PEM"),
        (break_certificate_folder, "tlsCertificateFilePath", "cannot be read (Is a directory); name a PEM"),
        (break_certificate_text, "tlsCertificateFilePath", "holds no certificate in PEM (-----BEGIN CERTIFICATE"),
        (break_key_missing, "tlsKeyFilePath", "cannot be read (No such file or directory); name a PEM"),
        (break_key_encrypted, "tlsKeyFilePath", "is encrypted; store it without a password (openssl pkey)"),
        (break_key_text, "tlsKeyFilePath", "holds no private key in PEM (-----BEGIN PRIVATE KEY-----)"),
        (break_key_of_another, "tlsKeyFilePath", "is not the key of the first certificate in "),
        (break_trust, "tlsTrustCertsFilePath", "holds no certificate in PEM (-----BEGIN CERTIFICATE"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line_and_key(
    damage: Callable[[CertificateFiles, Authority], None], key: str, reason: str, authority: Authority, tmp_path: Path
) -> None:
    files = authority.server()
    lines = {
        "brokerServicePortTls": 6651,
        "tlsCertificateFilePath": files.certificate,
        "tlsKeyFilePath": files.key,
        "tlsTrustCertsFilePath": authority.path,
    }
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    damage(files, authority)
    config = load_config(conf, environment={}, overrides=[])

    with pytest.raises(ConfigError) as caught:
        open_tls(config)

    line = list(lines).index(key) + 1
    assert str(caught.value).startswith(f"{conf}:{line}: {key}={lines[key]}: {lines[key]} {reason}")


def test_new_files_are_taken_when_they_have_changed(authority: Authority) -> None:
    files = authority.server()
    tls = ServerTls(config_of(files))
    old = shown_certificate(tls, authority)

    tls.refresh()
    unchanged = shown_certificate(tls, authority)
    authority.server()
    before = shown_certificate(tls, authority)
    tls.refresh()

    assert old == unchanged == before
    assert shown_certificate(tls, authority) != old


def test_an_interval_of_zero_looks_at_every_connection(authority: Authority) -> None:
    tls = ServerTls(config_of(authority.server(), refresh_interval_s=0))
    old = shown_certificate(tls, authority)

    authority.server()

    assert shown_certificate(tls, authority) != old


@pytest.mark.parametrize("damage", [break_certificate_text, break_key_of_another, break_key_missing])
def test_a_broken_new_file_keeps_the_old_certificate_and_is_said_at_every_look(
    damage: Callable[[CertificateFiles, Authority], None], authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.server()
    tls = ServerTls(config_of(files))
    old = shown_certificate(tls, authority)

    damage(files, authority)
    tls.refresh()
    tls.refresh()
    kept = shown_certificate(tls, authority)
    authority.server()
    tls.refresh()

    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert "TLS GOES ON WITH THE OLD CERTIFICATE" in errors[0].getMessage()
    assert kept == old != shown_certificate(tls, authority)


def test_whom_clients_certificates_must_be_from_follows_the_file(authority: Authority, tmp_path: Path) -> None:
    trust = tmp_path / "trust.pem"
    trust.write_bytes(authority.path.read_bytes())
    tls = ServerTls(config_of(authority.server(), trust_certs_path=trust, requires_client_cert=True))
    before = tls.current()

    trust.write_bytes(Authority(tmp_path, "successor").path.read_bytes())
    tls.refresh()

    (old,), (new,) = before.get_ca_certs(), tls.current().get_ca_certs()
    assert (old["subject"][0][0][1], new["subject"][0][0][1]) == ("authority", "successor")
    assert tls.current().verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(("days", "words"), [(-1, "has EXPIRED at 20"), (3, "expires at 20"), (30, None)])
def test_a_certificate_that_ends_is_warned_of(
    days: int, words: str | None, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    ServerTls(config_of(authority.server(valid_for=timedelta(days=days))))

    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (words is not None)
    assert words is None or words in warnings[0]


@pytest.mark.parametrize(("mode", "is_warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_key_that_every_user_may_read_is_warned_of(
    mode: int, is_warned: bool, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.server()
    files.key.chmod(mode)

    ServerTls(config_of(files))

    assert (f"the private key {files.key} may be read by every user" in caplog.text) is is_warned


@pytest.mark.parametrize(
    ("protocols", "expected"),
    [
        ("", (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)),
        ("TLSv1.3,TLSv1.2", (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)),
        ("TLSv1.2", (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)),
        (" TLSv1.3 ", (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)),
    ],
)
def test_the_protocols_are_those_of_the_key(
    protocols: str, expected: tuple[ssl.TLSVersion, ssl.TLSVersion], authority: Authority
) -> None:
    context = ServerTls(config_of(authority.server(), protocols=protocols)).current()

    assert (context.minimum_version, context.maximum_version) == expected
