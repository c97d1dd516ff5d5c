"""The ports of a configuration, with advice for a client that uses the wrong one.

There are up to four: Pulsar's protocol and HTTP, each with TLS and without. Listening is in
`postdate.broker.network.listener`.
"""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from postdate.broker.admin.web import WebPort
from postdate.broker.clients.connection import Connection
from postdate.broker.clients.requests import HANDLERS
from postdate.broker.configuration.config import BrokerConfig, settings
from postdate.broker.network.listener import Listener, Port, listen
from postdate.broker.service.service import Service

if TYPE_CHECKING:
    from postdate.broker.network.tls import ServerTls

_SCHEMES: Final = {"brokerServicePort": ("pulsar", "pulsar+ssl"), "webServicePort": ("http", "https")}


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


async def listen_for_clients(service: Service, tls: "ServerTls | None") -> AsyncExitStack:
    """Listen on the ports for Pulsar clients; closing the result ends that.

    Raises:
        OSError: One cannot be listened on.
    """
    config = service.config
    async with AsyncExitStack() as opened:
        for number, contexts in ((config.service_port, None), (config.service_port_tls, tls)):
            if number is None:
                continue
            port = Port(
                host=config.bind_address,
                number=number,
                factory=lambda accepted: Connection(service, HANDLERS, accepted),
                connect_timeout_s=config.limits.connect_timeout_s,
                tls=contexts,
                advice=_advice("brokerServicePort", config.service_port, config.service_port_tls, tls=bool(contexts)),
                admission=service.connection_controller,
            )
            listener: Listener = await listen(port)
            opened.push_async_callback(listener.close)
        return opened.pop_all()


def web_ports(config: BrokerConfig, tls: "ServerTls | None") -> list[WebPort]:
    """List the ports for HTTP."""
    return [
        WebPort(number, contexts, _advice("webServicePort", config.web_port, config.web_port_tls, tls=bool(contexts)))
        for number, contexts in ((config.web_port, None), (config.web_port_tls, tls))
        if number is not None
    ]


def _advice(key: str, plain: int | None, with_tls: int | None, *, tls: bool) -> str:
    """Return advice for a client that uses TLS on a plain port, or the other way round."""
    plain_scheme, tls_scheme = _SCHEMES[key]
    if tls:
        other = "" if plain is None else f", or {plain_scheme}:// with port {plain}"
        return f"use {tls_scheme}:// here{other}"
    other = f"{key}Tls is not set" if with_tls is None else f"{tls_scheme}:// is on port {with_tls}"
    return f"use {plain_scheme}:// here; {other}"
