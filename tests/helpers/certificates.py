"""Certificates for tests, made when they are needed and kept nowhere."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_A_DAY = timedelta(days=1)


class CertificateFiles(NamedTuple):
    """A certificate and its private key, in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates of servers and clients.

    Args:
        folder: Where files go.
        name: Its own common name.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            self._builder(self._name, self._key, timedelta(days=10))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / f"{name}.pem"
        """Its own certificate. A client that has it trusts the certificates that the authority signs."""
        self.path.write_bytes(certificate.public_bytes(Encoding.PEM))

    def server(
        self, file_name: str = "server", *, valid_for: timedelta = 30 * _A_DAY, host: str = "localhost"
    ) -> CertificateFiles:
        """Sign for a host name, and for 127.0.0.1 if it is localhost."""
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        if host == "localhost":
            names.append(x509.IPAddress(ip_address("127.0.0.1")))
        return self._issue(file_name, [(NameOID.COMMON_NAME, host)], ExtendedKeyUsageOID.SERVER_AUTH, names, valid_for)

    def client(self, common_name: str | None, file_name: str = "client") -> CertificateFiles:
        """Sign for a client, whose role in Pulsar is its common name."""
        names = [(NameOID.ORGANIZATION_NAME, "shop")]
        if common_name is not None:
            names.append((NameOID.COMMON_NAME, common_name))
        return self._issue(file_name, names, ExtendedKeyUsageOID.CLIENT_AUTH, [], 30 * _A_DAY)

    def _issue(
        self,
        file_name: str,
        names: list[tuple[x509.ObjectIdentifier, str]],
        usage: x509.ObjectIdentifier,
        other_names: list[x509.GeneralName],
        valid_for: timedelta,
    ) -> CertificateFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(kind, value) for kind, value in names])
        builder = (
            self._builder(subject, key, valid_for)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        if other_names:
            builder = builder.add_extension(x509.SubjectAlternativeName(other_names), critical=False)
        files = CertificateFiles(self._folder / f"{file_name}.pem", self._folder / f"{file_name}.key")
        files.certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        files.key.touch(0o600)
        files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid_for: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 60 * _A_DAY)
            .not_valid_after(now + valid_for)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def encrypted_key(path: Path) -> None:
    """Write a private key that has a password."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
