"""Certificates: read them, name their exact faults, and replace them when the files change.

A handshake uses the context of its moment, so new certificates (and new roots for clients' ones) hold for new
connections, and no connection is cut. An unusable certificate never replaces a usable one: a broken file is an error in
the log, at every check until it is mended. Sockets are left out.
"""

import hashlib
import logging
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from postdate.broker.configuration.tls_config import TlsConfig

logger = logging.getLogger(__name__)

EXPIRY_NOTICE: Final = timedelta(days=7)
"""How long before the end of a certificate the service warns, at start and at every check."""


class TlsFileError(Exception):
    """A file cannot be used.

    Attributes:
        field: The field of `TlsConfig` that names it.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


@dataclass(frozen=True, slots=True)
class _Loaded:
    context: ssl.SSLContext
    digest: bytes
    certificate: x509.Certificate


class ServerTls:
    """The certificates in force; made of files that can be used, and kept when they no longer can.

    Args:
        config: The files. It must have a certificate.
        now: The time with its zone.

    Raises:
        TlsFileError: A file cannot be used.
    """

    def __init__(self, config: TlsConfig, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._config = config
        self._now = now
        self._seen: tuple[object, ...] = self._stats()
        self._loaded = _load(config)
        self._warn_of_expiry()
        self._warn_of_mode()

    def current(self) -> ssl.SSLContext:
        """The context of a handshake that begins now."""
        if not self._config.refresh_interval_s and self._stats() != self._seen:
            self.refresh()
        return self._loaded.context

    def refresh(self) -> None:
        """Read the files again, if they have changed and can be used."""
        self._seen = self._stats()
        try:
            loaded = _load(self._config)
        except TlsFileError as error:
            logger.error(
                "TLS GOES ON WITH THE OLD CERTIFICATE, which ends at %s: %s", _end_of(self._loaded.certificate), error
            )
            return
        if loaded.digest != self._loaded.digest:
            self._loaded = loaded
            logger.info("new TLS files are in force; the certificate ends at %s", _end_of(loaded.certificate))
        self._warn_of_expiry()

    def _warn_of_expiry(self) -> None:
        certificate, now = self._loaded.certificate, self._now()
        path = self._config.certificate_path
        if certificate.not_valid_after_utc < now:
            logger.warning("the certificate %s has EXPIRED at %s: clients refuse it", path, _end_of(certificate))
        elif certificate.not_valid_before_utc > now:
            begin = certificate.not_valid_before_utc
            logger.warning("the certificate %s is not valid before %s: clients refuse it", path, begin.isoformat())
        elif certificate.not_valid_after_utc < now + EXPIRY_NOTICE:
            logger.warning("the certificate %s expires at %s", path, _end_of(certificate))

    def _warn_of_mode(self) -> None:
        path = self._config.key_path
        if path is not None and path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            logger.warning("the private key %s may be read by every user of this machine: chmod o= %s", path, path)

    def _stats(self) -> tuple[object, ...]:
        return tuple(_stat(path) for path in _paths(self._config).values())


def _load(config: TlsConfig) -> _Loaded:
    contents = {name: _read(name, path) for name, path in _paths(config).items()}
    certificate = _first_certificate("certificate_path", contents["certificate_path"], config)
    _check_key(contents["key_path"], certificate, config)
    assert config.certificate_path is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = config.versions
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # The password is asked for nowhere: without this, OpenSSL would ask on the terminal.
        context.load_cert_chain(config.certificate_path, config.key_path, password=str)
    except (OSError, ValueError) as error:
        raise TlsFileError("certificate_path", f"{config.certificate_path} cannot be used: {error}") from error
    if config.trust_certs_path is not None:
        _first_certificate("trust_certs_path", contents["trust_certs_path"], config)
        # Every certificate in the file is trusted, also without a root above it, as in Java.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_mode = ssl.CERT_REQUIRED if config.requires_client_cert else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cadata=contents["trust_certs_path"].decode("ascii", errors="ignore"))
        except (OSError, ValueError) as error:
            raise TlsFileError("trust_certs_path", f"{config.trust_certs_path} cannot be used: {error}") from error
    digest = hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in contents.values())).digest()
    return _Loaded(context, digest, certificate)


def _paths(config: TlsConfig) -> dict[str, Path]:
    named = {name: getattr(config, name) for name in ("certificate_path", "key_path", "trust_certs_path")}
    return {name: path for name, path in named.items() if path is not None}


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        why = error.strerror or str(error)
        raise TlsFileError(name, f"{path} cannot be read ({why}); name a PEM file that this user may read") from error


def _first_certificate(name: str, content: bytes, config: TlsConfig) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(content)[0]
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TlsFileError(
            name, f"{getattr(config, name)} holds no certificate in PEM (-----BEGIN CERTIFICATE-----): {error}"
        ) from error


def _check_key(content: bytes, certificate: x509.Certificate, config: TlsConfig) -> None:
    path = config.key_path
    try:
        key = load_pem_private_key(content, None)
    except TypeError as error:
        raise TlsFileError(
            "key_path", f"{path} is encrypted; store it without a password (openssl pkey), readable by this user alone"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TlsFileError("key_path", f"{path} holds no private key in PEM (-----BEGIN PRIVATE KEY-----)") from error
    of_key, of_certificate = (
        one.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for one in (key.public_key(), certificate.public_key())
    )
    if of_key != of_certificate:
        raise TlsFileError(
            "key_path",
            f"{path} is not the key of the first certificate in {config.certificate_path}; "
            "name the two that were made together, the service's own certificate first",
        )


def _stat(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _end_of(certificate: x509.Certificate) -> str:
    return certificate.not_valid_after_utc.isoformat()
