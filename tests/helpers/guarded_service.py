"""A service that takes tokens and looks at grants, and the requests of its clients about one topic."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from postdate.broker.authorization.grants import Action
from postdate.broker.configuration.access import AccessConfig
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, FeatureFlags
from postdate.broker.service.service import Service
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes import service_fakes
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.tokens import SECRET_KEY, TOKEN_PROVIDER

ORDERS = TopicName.parse("shop/eu/orders")
PRODUCE, CONSUME = frozenset({Action.PRODUCE}), frozenset({Action.CONSUME})
NOTHING: frozenset[Action] = frozenset()


def connect(service: Service, auth_data: bytes | None, *, method: str = "token", refreshes: bool = True) -> Peer:
    """Connect as a client that shows this."""
    peer = Peer(service, has_to_connect=False)
    command = BaseCommand(type=BaseCommand.CONNECT, connect={"client_version": "test", "protocol_version": 20})
    command.connect.feature_flags.CopyFrom(FeatureFlags(supports_auth_refresh=refreshes))
    if auth_data is not None:
        command.connect.auth_method_name = method
        command.connect.auth_data = auth_data
    peer.send(command)
    return peer


def play(folder: Path, story: Callable[[Service], Awaitable[None]], **access: Any) -> None:
    """Run a story on a service with authorization."""
    keys: dict[str, Any] = {
        "is_authentication_enabled": True,
        "provider_class_names": (TOKEN_PROVIDER,),
        "token_secret_key": SECRET_KEY,
        "is_authorization_enabled": True,
        "super_user_roles": ("root",),
    } | access
    service_fakes.play(folder, story, access=AccessConfig(**keys))


def produce_request(peer: Peer) -> Awaitable[BaseCommand]:
    """Ask for a producer of the topic."""
    return peer.request(BaseCommand.PRODUCER, "producer", topic=str(ORDERS), producer_id=1)
