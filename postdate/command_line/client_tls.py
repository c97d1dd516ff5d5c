"""TLS as a client of the service: the authorities to trust, and the certificate to show.

This module imports the standard library alone, as programs import it by way of `scheduling`.
"""

import ssl
from pathlib import Path


class ClientTlsError(Exception):
    """A file cannot be used; the text names it."""


def client_context(
    trust_certs_file: str | None, certificate_file: str | None, private_key_file: str | None
) -> ssl.SSLContext:
    """Return the context of a client, from PEM files that are read once.

    Args:
        trust_certs_file: The authorities to trust; None for those of the system.
        certificate_file: The client's certificate, for a service that asks for one.
        private_key_file: The key of the certificate, without a password.

    Raises:
        ClientTlsError: A file cannot be used, or a certificate is without its key.
    """
    if (certificate_file is None) != (private_key_file is None):
        raise ClientTlsError("a client's certificate and its private key must be given together")
    if trust_certs_file is not None:
        _check_certificate(trust_certs_file)
    context = ssl.create_default_context(cafile=trust_certs_file)
    if certificate_file is not None and private_key_file is not None:
        _check_certificate(certificate_file)
        _check_readable(private_key_file)
        try:
            # The password is asked for nowhere: without this, OpenSSL would ask on the terminal.
            context.load_cert_chain(certificate_file, private_key_file, password=str)
        except (OSError, ValueError) as error:
            raise ClientTlsError(
                f"{private_key_file} is not the private key of {certificate_file}, in PEM and without a password"
            ) from error
    return context


def _check_certificate(path: str) -> None:
    _check_readable(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError as error:
        raise ClientTlsError(f"{path} holds no certificate in PEM (-----BEGIN CERTIFICATE-----)") from error


def _check_readable(path: str) -> None:
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise ClientTlsError(f"{path} cannot be read: {error.strerror or error}") from error
