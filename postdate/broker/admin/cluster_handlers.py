"""The handlers about bundles: which service has which, and moving one. Pulsar's paths, and `/postdate/v1/cluster`."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from managed_ledger.bundles import BundleRange
from managed_ledger.positions.value_types import Json
from postdate.broker.admin.endpoint import Call
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.admin.web_service import Served
from postdate.broker.ownership.owners import OwnershipError
from postdate.broker.scheduled.answers import Answer

BundleName = Annotated[str, Meta(description="A bundle: its range of hashes")]


class ClusterService(Answer, kw_only=True):
    """A service, or a worker of one."""

    name: str
    service_url: str | None
    service_url_tls: str | None
    web_url: str | None
    web_url_tls: str | None
    bundles: list[BundleName]
    messages_per_second: Annotated[float, Meta(description="That it takes and delivers, over the last minute or so")]
    problem: Annotated[str | None, Meta(description="Why it does not answer; null while it does")] = None


class ClusterBundle(Answer, kw_only=True):
    """A bundle."""

    bundle: BundleName
    owner: Annotated[str | None, Meta(description="The name of its service; null while none is known to have it")]


class ClusterAnswer(Answer, kw_only=True):
    """All services and bundles."""

    answered_by: Annotated[str, Meta(description="The name of the service that answers")]
    services: list[ClusterService]
    bundles: list[ClusterBundle]


class Unload(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Asks to move a bundle."""

    bundle: BundleName
    to: Annotated[str | None, Meta(description="The name of the service that is to have it; null for any other")] = None


class UnloadOptions(Struct, rename="camel"):
    """Options of Pulsar's path."""

    destination_broker: str = ""


async def get_cluster(served: Served, _: Call[None]) -> ClusterAnswer:
    """Which service has which bundle, and how much each takes and delivers."""
    owners = served.service.owners
    services = [
        ClusterService(
            name=one.name,
            **one.addresses._asdict(),
            bundles=list(map(str, one.bundles)),
            messages_per_second=round(one.load, 1),
        )
        for one in owners.services()
    ]
    owned = [(bundle, owners.owner_of(bundle)) for bundle in served.service.ranges]
    bundles = [
        ClusterBundle(bundle=str(bundle), owner=None if owner is None else owner.name) for bundle, owner in owned
    ]
    return ClusterAnswer(answered_by=owners.own_name, services=services, bundles=bundles)


async def move_bundle(served: Served, call: Call[Unload]) -> ClusterAnswer:
    """Move a bundle to another service; where there is none, close it and open it again."""
    await _unload(served, call.asked.bundle, call.asked.to)
    return await get_cluster(served, Call(call.request, None))


async def list_bundles(served: Served, _: Call[None]) -> Json:
    """The bundles, which the topics of all namespaces share."""
    ranges = served.service.ranges
    bounds = [str(ranges[0]).partition("_")[0], *(str(one).partition("_")[2] for one in ranges)]
    return {"boundaries": bounds, "numBundles": len(ranges)}


async def unload_bundle(served: Served, call: Call[None]) -> None:
    """Move a bundle to another service; where there is none, close it and open it again."""
    await _unload(served, call.part("bundle"), call.options.destination_broker or None)


async def bundle_of_topic(served: Served, call: Call[None]) -> web.Response:
    """The bundle of a topic, which need not exist."""
    bundle = served.service.range_of(call.topic_name)
    return web.Response(text=str(bundle))


async def _unload(served: Served, name: str, to: str | None) -> None:
    try:
        bundle = BundleRange.parse(name)
    except ValueError as error:
        raise RefusalError(412, str(error), field="bundle") from error
    if bundle not in served.service.ranges:
        advice = "GET /postdate/v1/cluster (postdate cluster status) lists them"
        raise RefusalError(404, f"There is no bundle {name}", field="bundle", advice=advice)
    try:
        await served.service.unload_bundle(bundle, to)
    except OwnershipError as error:
        raise RefusalError(409, str(error), field="to") from error
