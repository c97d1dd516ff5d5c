"""Grants of a guarded service, and requests to its web port by role or by token; also of a real Pulsar."""

import json
import urllib.error
import urllib.request
from typing import Any

from tests.helpers.services.programs.clients import now_ms
from tests.helpers.services.services import ADMIN, RunningService
from tests.helpers.tokens import token


def path_of(topic: str) -> str:
    """Return the path of a topic in the admin interface."""
    return f"/admin/v2/{topic.replace('://', '/')}"


def ask(
    service: RunningService, shown: str | bytes | None, method: str, path: str, body: Any = None
) -> tuple[int, Any]:
    """Send a request to the web port, as a role or with a token; the answer is its status and its JSON or text."""
    shown = token(shown) if isinstance(shown, str) else shown
    headers = {"Content-Type": "application/json"}
    if shown is not None:
        headers["Authorization"] = f"Bearer {shown.decode()}"
    request = urllib.request.Request(
        service.web_url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers=headers,
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            status, text = reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def ending_in(seconds: int) -> bytes:
    """Return a token of the super user that does not hold for long."""
    return token(ADMIN, exp=now_ms() // 1000 + seconds)


def grant(service: RunningService, owner: str, role: str, *actions: str) -> None:
    """Grant a role some actions on a topic or a namespace, of which the path is given."""
    assert ask(service, ADMIN, "POST", f"{owner}/permissions/{role}", list(actions))[0] == 204


def revoke(service: RunningService, owner: str, role: str) -> None:
    """Take a role's grant away."""
    assert ask(service, ADMIN, "DELETE", f"{owner}/permissions/{role}")[0] == 204
