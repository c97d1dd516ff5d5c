"""Boto3's client of one server, and its credentials: found where AWS's own tools find them, and found again.

Credentials in a file are read once by boto3. When they expire, new ones are written there, and a service must not have
to start again for that. So a connection that is refused asks for new ones. Credentials that boto3 renews by itself (of
a machine, a container, a role) it goes on renewing, and those of the configuration stay as they are.
"""

import logging
import threading
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache
from io import BytesIO
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import RefreshableCredentials

from snapshot_storage.s3.config import S3Config

logger = logging.getLogger(__name__)


class S3Connection:
    """A client that may be replaced by another one at any time; for any thread."""

    def __init__(self, config: S3Config) -> None:
        """Find credentials and region; raises what boto3 does."""
        # At this level botocore logs whole requests, with session tokens in them.
        botocore_log = logging.getLogger("botocore")
        botocore_log.setLevel(max(botocore_log.getEffectiveLevel(), logging.INFO))
        self._config = config
        self._turn = threading.Lock()
        self.client, self._credentials = self._connected(self._session())
        """For the next request."""

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return str(self.client.meta.endpoint_url)

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def is_renewed(self, refused: Any) -> bool:
        """Look for other credentials than a client was refused with; whether the next request is made with others."""
        with self._turn:
            if self.client is not refused:
                return True
            if self._config.access_key_id is not None or isinstance(self._credentials, RefreshableCredentials):
                return False
            session = self._session()
            if _frozen(session.get_credentials()) == _frozen(self._credentials):
                return False
            logger.info("taking other credentials for S3, as those before are refused")
            self.client, self._credentials = self._connected(session)
        # Requests under way keep their connections to the end.
        refused.close()
        return True

    def _session(self) -> boto3.session.Session:
        config = self._config
        core = botocore.session.Session()
        core.register_component("data_loader", _service_descriptions())
        # Botocore's own tries many formats, a tenth of a request's processor time.
        core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time_in)
        return boto3.session.Session(
            botocore_session=core,
            aws_access_key_id=config.access_key_id,
            aws_secret_access_key=config.secret_access_key,
            aws_session_token=config.session_token,
        )

    def _connected(self, session: boto3.session.Session) -> tuple[Any, Any]:
        config = self._config
        client = session.client(
            "s3", region_name=config.region, endpoint_url=config.endpoint, config=_client_config(config)
        )
        client.meta.events.register_last("before-call.s3", _send_at_once)
        return client, session.get_credentials()


@cache
def _service_descriptions() -> Any:
    """Return what reads botocore's descriptions of AWS, for all clients of this process.

    Reading them takes 0.11 of the 0.13 s of processor time that a client costs, and each session would do it anew.
    """
    return botocore.session.Session().get_component("data_loader")


def _time_in(text: str) -> datetime:
    """Read a time of an answer: of a header, or of XML."""
    return datetime.fromisoformat(text) if text[0].isdigit() else parsedate_to_datetime(text)


def _frozen(credentials: Any) -> Any:
    """Return the comparable part of credentials; None where there are none."""
    return None if credentials is None else credentials.get_frozen_credentials()


def _send_at_once(params: dict[str, Any], **_: Any) -> None:
    """Send bytes behind their headers, without asking first whether the server wants them.

    The question takes a round trip, with some servers 40 ms, and a second with those that do not answer it. A file may
    be large, and keeps it.
    """
    if isinstance(params.get("body"), BytesIO):
        params["headers"].pop("Expect", None)


def _client_config(config: S3Config) -> Config:
    return Config(
        connect_timeout=config.connect_timeout_ms / 1_000,
        read_timeout=config.read_timeout_ms / 1_000,
        retries={"mode": "standard", "total_max_attempts": 1},
        max_pool_connections=config.calls_in_flight_max,
        # The server's checksum of a whole object names no entry, and would come before ours: a flipped bit would be a
        # failed call, not damage to rebuild from.
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if config.is_path_style else "auto"},
        tcp_keepalive=True,
        # Else it is put together anew for each request, which takes a seventh of a request's processor time.
        user_agent="postdate",
    )
