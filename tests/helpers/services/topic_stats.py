"""The admin requests about a topic, as an operator sends them to Postdate or to a real Pulsar."""

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from tests.helpers.services.services import RunningService


def ask_topic(service: RunningService, topic: str, what: str) -> tuple[int, Any]:
    """Return status and JSON of an admin request about a topic."""
    address = urlsplit(service.web_url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=20)
    try:
        connection.request("GET", f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/{what}")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
