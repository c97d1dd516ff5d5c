"""Ask a running service about one key, and write the answer as text lines."""

import json
from http.client import HTTPException
from textwrap import fill
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from postdate.broker.errors import AdminRequestError
from postdate.broker.topics.topic_name import TopicName
from postdate.command_line.client_tls import ClientTlsError, client_context
from postdate.command_line.failures import reason_of
from postdate.command_line.output import iso

TIMEOUT_S: Final = 10.0
_POSITIONS_SHOWN_MAX: Final = 10
_COLUMN: Final = 10
_WIDTH: Final = 80
_UNBROKEN: Final = "\N{NO-BREAK SPACE}"


def key_status(
    topic: str,
    subscription: str,
    key: str,
    *,
    is_base64: bool,
    url: str,
    token: str | None,
    trust_certs: str | None,
    client_cert: str | None,
    client_key: str | None,
) -> dict[str, Any]:
    """Return where a key stands, as the service's `POST .../keys` says it: a key may be longer than a query can be.

    Args:
        topic: The topic, in any of the forms that clients use.
        subscription: The subscription.
        key: The key, as text or as base64.
        is_base64: Whether it is base64.
        url: The service's web port, like `http://127.0.0.1:8080`.
        token: The caller's token, where the service authenticates callers.
        trust_certs: The authorities to trust for `https`; None for those of the system.
        client_cert: The caller's certificate, where the service asks for one.
        client_key: The key of the certificate, without a password.

    Raises:
        BrokerError: The topic's name is invalid.
        AdminRequestError: The service does not answer, or knows no such topic or subscription.
            Or a file of TLS cannot be used.
    """
    tenant, namespace, local_name = TopicName.parse(topic)
    path = "/".join(quote(part, safe="") for part in (tenant, namespace, local_name))
    body = {"subscription": subscription, "keyBase64" if is_base64 else "key": key}
    address = f"{url.rstrip('/')}/postdate/v1/topics/{path}/keys"
    if not address.startswith(("http://", "https://")):
        raise AdminRequestError(f"--url {url} is no address: write http://host:port")
    try:
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        tls = client_context(trust_certs, client_cert, client_key)
        request = Request(address, data=json.dumps(body).encode(), headers=headers, method="POST")
        with urlopen(request, timeout=TIMEOUT_S, context=tls) as answer:
            status: dict[str, Any] = json.load(answer)
    except HTTPError as error:
        raise AdminRequestError(_reason(error)) from error
    except ClientTlsError as error:
        raise AdminRequestError(str(error)) from error
    except (HTTPException, OSError) as error:
        raise AdminRequestError(f"no service answers at {url}: {reason_of(error)}; see --url") from error
    except ValueError as error:
        raise AdminRequestError(f"what answers at {url} is no service of Postdate; see --url") from error
    return status


def _reason(error: HTTPError) -> str:
    with error:
        try:
            return str(json.load(error)["error"])
        except (ValueError, KeyError):
            return f"the service answered {error.code} {error.reason}"


def key_lines(status: dict[str, Any]) -> str:
    """Return an answer of `keyStatus` as lines.

    >>> print(key_lines({"key": "k", "hash": 7, "owner": "b", "waitingEntries": 2, "reason": "another consumer ...",
    ...     "blockedBy": "a", "blockedSinceTimestamp": 0, "unackedEntries": 1,
    ...     "unacked": [{"position": "1:5", "consumerName": "a"}]}), end="")
    key       k
    hash      7
    owner     b
    waiting   2 (another consumer ...)
    blocked   by a since 1970-01-01T00:00:00.000Z
    unacked   1: 1:5 at a
    """
    lines = [
        f"key       {status['key']}",
        f"hash      {status['hash']}",
        f"owner     {status['owner'] or 'no consumer'}",
        f"waiting   {status['waitingEntries']} ({status['reason']})",
    ]
    if status["blockedBy"] is not None:
        lines.append(f"blocked   by {status['blockedBy']} since {iso(status['blockedSinceTimestamp'])}")
    held = [
        f"{one['position']}{_UNBROKEN}at{_UNBROKEN}{one['consumerName']}"
        for one in status["unacked"][:_POSITIONS_SHOWN_MAX]
    ]
    more = ", ..." if status["unackedEntries"] > len(held) else ""
    lines.append(f"unacked   {status['unackedEntries']}" + (f": {', '.join(held)}{more}" if held else ""))
    return "".join(f"{_folded(line)}\n" for line in lines)


def _folded(line: str) -> str:
    """Break a line that is too long for a terminal, below the second column."""
    indent = " " * _COLUMN
    folded = fill(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return folded.replace(_UNBROKEN, " ")
