"""Members as objects: `members/ID`, a small JSON document each.

Calls run in threads of their own, so that no other work delays a renewal. Each has a time limit, after which its
outcome is unknown; a write that lands later than another does nothing, as each is made under the tag of the one before.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Final, TypeVar

from managed_ledger.bundle_settings import MEMBERS
from managed_ledger.bundles import BundleRange
from managed_ledger.objects.object_store import ObjectStore
from postdate.broker.ownership.core.membership import Member
from postdate.broker.ownership.owners import Addresses

T = TypeVar("T")

logger = logging.getLogger(__name__)

FORMAT: Final = "postdate member 1"
_LISTS: Final = ("opened", "opening", "closing", "ready", "pinned", "refused")


def encode_member(member: Member) -> bytes:
    """Return the bytes of a member's object."""
    content: dict[str, object] = {"format": FORMAT, "id": member.id, "name": member.name, "counter": member.counter}
    content["addresses"] = member.addresses._asdict()
    for name in _LISTS:
        content[name] = [str(one) for one in sorted(getattr(member, name))]
    content["wanted"] = {str(bundle): to for bundle, to in member.wanted.items()}
    content |= {"load": round(member.load, 3), "leaving": member.is_leaving}
    return json.dumps(content, indent=1).encode()


def decode_member(data: bytes) -> Member | None:
    """Read the bytes of a member's object; None where it is of another format, or makes no sense."""
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            return None
        lists = {name: frozenset(BundleRange.parse(text) for text in content[name]) for name in _LISTS}
        wanted = {BundleRange.parse(text): str(to) for text, to in content["wanted"].items()}
        return Member(
            str(content["id"]),
            str(content["name"]),
            Addresses(**content["addresses"]),
            int(content["counter"]),
            wanted=wanted,
            load=float(content["load"]),
            is_leaving=bool(content["leaving"]),
            **lists,
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


class MemberObjects:
    """The objects of the members of a prefix, for an event loop.

    Args:
        objects: The prefix.
        executor: Runs the calls.
        limit_s: How long a call may take before its outcome counts as unknown, in seconds.
    """

    def __init__(self, objects: ObjectStore, executor: Executor, limit_s: float) -> None:
        self._objects = objects
        self._executor = executor
        self._limit_s = limit_s
        self._unread: set[str] = set()

    def __str__(self) -> str:
        return f"{self._objects}/{MEMBERS.rstrip('/')}"

    async def ids(self) -> frozenset[str]:
        """List the members, dead ones too."""
        names = await self._call(lambda: list(self._objects.names(MEMBERS)))
        return frozenset(name.removeprefix(MEMBERS) for name in names)

    async def read(self, member_id: str) -> Member | None:
        """Read a member; None where there is none, or something that is no member of this version."""
        found = await self._call(lambda: self._objects.read(MEMBERS + member_id))
        if found is None:
            return None
        member = decode_member(found[0])
        if member is None and member_id not in self._unread:
            self._unread.add(member_id)
            logger.warning("%s/%s is no member that this version understands, and is left out", self, member_id)
        return member

    async def write(self, member: Member, tag: str | None) -> str | None:
        """Write a member in place of what has the tag; return the new tag.

        None means that it was not written, as something else is there; or nothing where there should be something.
        """
        data = encode_member(member)
        return await self._call(lambda: self._objects.replace(MEMBERS + member.id, data, tag))

    async def read_own(self, member_id: str) -> tuple[Member | None, str] | None:
        """Read a member with its tag, None where there is none."""
        found = await self._call(lambda: self._objects.read(MEMBERS + member_id))
        return None if found is None else (decode_member(found[0]), found[1])

    async def delete(self, member_id: str) -> None:
        """Delete a member: to the others, it is gone at once."""
        await self._call(lambda: self._objects.delete(MEMBERS + member_id))

    async def _call(self, work: Callable[[], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        # A call that was given up may still fail.
        future.add_done_callback(_look_at_error)
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.shield(future)
        except TimeoutError as error:
            if future.done():
                raise
            raise TimeoutError(f"the storage has not answered for {self._limit_s:g} s") from error


def _look_at_error(future: "asyncio.Future[Any] | Future[Any]") -> None:
    if not future.cancelled():
        future.exception()
