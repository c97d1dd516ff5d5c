"""The service on a prefix of object storage, one of any number: its bundles come and go by leases."""

from collections.abc import Callable

from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.ownership.leases import LeaseOwners
from postdate.broker.server.server import Role, serve
from postdate.broker.server.service_manager import ServiceManager
from postdate.broker.service.object_place import ObjectPlace
from postdate.broker.service.service import addresses_of, service_name


async def serve_on_prefix(
    config: BrokerConfig, *, announce: Callable[[], None], manager: ServiceManager | None = None
) -> int:
    """Run the service until SIGTERM, SIGINT or SIGHUP; see `server.serve`.

    Args:
        config: The configuration, whose data directory is on object storage.
        announce: Called once when clients can connect.
        manager: The supervisor of the process, None if there is none.

    Returns:
        The process's exit code, as `server.serve` returns it.

    Raises:
        ServiceStartError: The prefix cannot be used; the text says what to do.
        ConfigError: A file that a key names cannot be used.
        OSError: A port cannot be listened on.
    """
    place = await ObjectPlace.open(config)
    owners = LeaseOwners(
        place.objects,
        place.ranges,
        name=service_name(config),
        addresses=addresses_of(config),
        lease_s=config.object_storage.lease_s,
    )
    role = Role(owners=owners, place=place, secret=place.secret)
    return await serve(config, announce=announce, manager=manager, role=role)
