"""The publisher of a connection tells a client that its producer is closed, also after a commit that fails or hangs."""

import asyncio
from typing import cast

import pytest

from managed_ledger.errors import LedgerWriteError
from managed_ledger.managed_ledger import ManagedLedger
from postdate.broker.clients.publishing import RECEIPTS_WAIT_S, Publisher
from postdate.broker.protocol.commands import close_producer
from postdate.broker.service.refusal_log import RefusalLog
from postdate.broker.topics.link import ClientLink
from postdate.broker.topics.publishing_buffer import PublishBuffer
from tests.helpers.fakes.virtual_time import run


class HeldLog:
    """A log whose last commit goes on until the test ends it."""

    def __init__(self) -> None:
        self.commit: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self) -> "asyncio.Future[None]":
        return self.commit


class RememberedLink:
    """The frames that a client was sent, each with the second of its sending."""

    def __init__(self) -> None:
        self.written: list[tuple[float, bytes]] = []

    def write(self, data: bytes) -> None:
        self.written.append((asyncio.get_running_loop().time(), data))


@pytest.mark.parametrize(
    ("end", "told_s"), [("it succeeds", 1.0), ("it fails", 1.0), ("it takes too long", RECEIPTS_WAIT_S)]
)
def test_a_client_is_told_of_its_closed_producer_when_the_commit_has_ended_or_takes_too_long(
    end: str, told_s: float
) -> None:
    async def story() -> list[tuple[float, bytes]]:
        log, link = HeldLog(), RememberedLink()
        publisher = Publisher(
            cast(ClientLink, link), pending_bytes_max=1, buffer=PublishBuffer(1), refusal_log=RefusalLog()
        )

        publisher.tell_closed(cast(ManagedLedger, log), 7)
        await asyncio.sleep(1)
        if end == "it succeeds":
            log.commit.set_result(None)
        elif end == "it fails":
            log.commit.set_exception(LedgerWriteError("the disk says no"))
        await asyncio.sleep(60)
        return link.written

    assert run(story()) == [(told_s, close_producer(7))]
