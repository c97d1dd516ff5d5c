"""The ports of a configuration.

There are up to four: Pulsar's protocol and HTTP, each with TLS and without. Listening is in
`postdate.broker.network.listener`.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from postdate.broker.clients.connection import Connection
from postdate.broker.clients.requests import HANDLERS
from postdate.broker.configuration.config import BrokerConfig, settings
from postdate.broker.network.listener import Listener, Port, listen
from postdate.broker.service.service import Service

if TYPE_CHECKING:
    from postdate.broker.network.tls import ServerTls


def open_tls(config: BrokerConfig) -> "ServerTls | None":
    """Read the certificates, if a port needs them.

    Raises:
        ConfigError: They cannot be used; it names the key of the file at fault, and what to do.
    """
    if not config.has_tls:
        return None
    # Imported late: a service without TLS needs none of it.
    from postdate.broker.network.tls import ServerTls, TlsFileError

    try:
        return ServerTls(config.tls)
    except TlsFileError as error:
        key = next(one.key for one in settings() if (one.section, one.field.name) == ("tls", error.field))
        raise config.refusal(key, str(error)) from error


@dataclass(frozen=True, slots=True)
class InheritedSockets:
    """The sockets of ports that another process has bound, by their file descriptors; none where it has bound none."""

    clients: tuple[int, ...] = ()
    clients_tls: tuple[int, ...] = ()
    web: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        """Every file descriptor."""
        return self.clients + self.clients_tls + self.web


NO_SOCKETS: Final = InheritedSockets()


async def listen_for_clients(
    service: Service, tls: "ServerTls | None", inherited: InheritedSockets = NO_SOCKETS
) -> AsyncExitStack:
    """Listen on the ports for Pulsar clients; closing the result ends that.

    Args:
        service: What serves them.
        tls: The certificates.
        inherited: Sockets that are there already.

    Raises:
        OSError: One cannot be listened on.
    """
    config = service.config
    async with AsyncExitStack() as opened:
        plain = (config.service_port, None, inherited.clients)
        for number, contexts, sockets in (plain, (config.service_port_tls, tls, inherited.clients_tls)):
            if number is None:
                continue
            port = Port(
                host=config.bind_address,
                number=number,
                factory=lambda: Connection(service, HANDLERS),
                handshake_timeout_s=config.limits.connect_timeout_s,
                tls=contexts,
                inherited=sockets,
            )
            listener: Listener = await listen(port)
            opened.push_async_callback(listener.close)
        return opened.pop_all()
