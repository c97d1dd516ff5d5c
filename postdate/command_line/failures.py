"""Text about a request to the web port of a service that got no answer."""

from http.client import RemoteDisconnected
from urllib.error import URLError


def reason_of(error: Exception) -> str:
    """Return why a request got no answer, with an advice where its port may be the broker's.

    That port speaks Pulsar's binary protocol, and ends the connection at the first line of HTTP.

    >>> reason_of(ConnectionRefusedError("Connection refused"))
    'Connection refused'
    """
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, RemoteDisconnected | ConnectionResetError):
        return f"{reason}; this may be the broker's port (brokerServicePort): give the web port (webServicePort)"
    return str(reason)
