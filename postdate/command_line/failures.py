"""Text about a request to the web port of a service that got no answer."""

import socket
import ssl
from http.client import RemoteDisconnected
from typing import Final
from urllib.error import URLError
from urllib.parse import urlsplit

_UNKNOWN_AUTHORITY: Final = (18, 19, 20, 21)
"""OpenSSL's codes of a certificate, self-signed or not, that no trusted authority has signed."""
_PROBE_TIMEOUT_S: Final = 2.0
_BROKERS_PORT: Final = "this may be the broker's port (brokerServicePort): give the web port (webServicePort)"


def reason_of(error: Exception, url: str, *, has_certificate: bool = False) -> str:
    """Return why a request got no answer, with the option that mends it where one does.

    Args:
        error: What the request raised.
        url: The address of the web port.
        has_certificate: Whether the caller has shown a certificate.

    >>> reason_of(ConnectionRefusedError("Connection refused"), "http://localhost:8080")
    'Connection refused'
    """
    reason = error.reason if isinstance(error, URLError) else error
    match reason:
        case ssl.SSLCertVerificationError(verify_code=code) if code in _UNKNOWN_AUTHORITY:
            return f"{reason.verify_message}: name the authority of its certificate by --trust-certs"
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER" | "RECORD_LAYER_FAILURE"):
            return "it speaks no TLS there: write http://, or give the port of webServicePortTls"
        case RemoteDisconnected() | ConnectionResetError() | BrokenPipeError() | ssl.SSLEOFError():
            return f"{reason}; {_why_ended(url, has_certificate=has_certificate)}"
    return str(reason)


def _why_ended(url: str, *, has_certificate: bool) -> str:
    """Return why a port ended a connection in silence, as the service does with what it cannot take.

    The broker's port speaks Pulsar's binary protocol, and ends it at the first line of HTTP.
    """
    if not url.startswith("https:"):
        return "it speaks TLS there: write https://" if _takes_tls(url) else _BROKERS_PORT
    if has_certificate:
        return f"it may not trust the certificate of --client-cert, or {_BROKERS_PORT}"
    # In TLS 1.3 a missing certificate ends the connection behind the handshake only.
    if _takes_tls(url, ssl.TLSVersion.TLSv1_2):
        return _BROKERS_PORT
    return "it asks for the caller's certificate: name it by --client-cert and --client-key"


def _takes_tls(url: str, version_max: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED) -> bool:
    """Whether a port makes a handshake of TLS with a caller without a certificate; nothing is sent behind it."""
    address = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = version_max
    try:
        with (
            socket.create_connection((address.hostname, address.port or 443), _PROBE_TIMEOUT_S) as connected,
            context.wrap_socket(connected, server_hostname=address.hostname),
        ):
            return True
    except OSError:
        return False
