"""Takes over the log of a bundle from whoever had it, also where that one still runs.

    idle       read the manifest; change it: epoch + 1, owner = me   ─► claimed;   another's change came first: idle
    claimed    the tables of that manifest to disk, open RocksDB     ─► replaying from the manifest's start
    replaying  read object n: of my epoch or before: apply it, n + 1;  of a later one: idle
               none there: create a fence as n                       ─► fenced;    one is there now: read n again
    fenced     read the manifest again: exactly my claim?            ─► serving from n + 1;  else: idle

An owner that wakes up later creates, as its next object, either one that it had created before, or the first fence of
its successors: fences are never deleted, so it learns of them before it answers anybody. The second look at the
manifest is for a claimant that slept: its fence may have the number of an object that was used and deleted meanwhile.
`tests/simulation/object_log_model.py` walks all orders of events.
"""

import logging
import secrets
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import uuid4

from managed_ledger.errors import LogFencedError
from managed_ledger.objects.log_object import LOGS, LogObject, Replay, log_name, log_number
from managed_ledger.objects.manifest import MANIFEST, TABLES, Manifest, epoch_of
from managed_ledger.objects.object_store import ObjectStore

logger = logging.getLogger(__name__)

_READS_AT_FIRST: Final = 3
_READS_AHEAD: Final = 8
"""Objects that are read at once: more threads only wait for each other."""


class Claim(NamedTuple):
    """A manifest that is stored, with its tag."""

    manifest: Manifest
    tag: str


class TakenLog(NamedTuple):
    """A log that was taken over.

    Attributes:
        claim: The manifest as this owner has changed it.
        next_number: The number of its first object.
        fences: All fences that there are.
        size_bytes: Changes since the checkpoint.
    """

    claim: Claim
    next_number: int
    fences: tuple[int, ...]
    size_bytes: int


def claim_log(objects: ObjectStore, new_log: str | None = None) -> Claim:
    """Make a log this caller's own; the owner before learns of it at its next change of the manifest.

    Args:
        objects: The place of the bundle.
        new_log: The id of a log that has none; None for a new one.

    Raises:
        LogFencedError: Another one has just claimed it.
        BackupError: The manifest is of another format, or damaged.
        Exception: As `ObjectStore` raises: whether it is claimed is not known.
    """
    found = objects.read(MANIFEST)
    before = Manifest() if found is None else Manifest.decode(found[0], str(objects))
    # A log keeps its id before its first checkpoint too: a backup takes the place of one of the same log alone.
    log = before.log or new_log or str(uuid4())
    claim = replace(before, epoch=before.epoch + 1, owner=secrets.token_hex(8), log=log)
    tag = change_manifest(objects, claim, None if found is None else found[1])
    if tag is None:
        raise LogFencedError(f"Another one has just claimed the log in {objects}")
    return Claim(claim, tag)


def change_manifest(objects: ObjectStore, manifest: Manifest, tag: str | None) -> str | None:
    """Change the manifest where it has this tag.

    Returns:
        Its new tag; None where it is another's now.

    Raises:
        Exception: As `ObjectStore` raises: whether it was changed is not known. The same call may be repeated.
    """
    data = manifest.encode()
    try:
        made = objects.replace(MANIFEST, data, tag)
    except Exception:
        # It may have been carried out.
        if (own := _tag_of(objects, data)) is None:
            raise
        return own
    # A repeated request may have met its own change.
    return made or _tag_of(objects, data)


def _tag_of(objects: ObjectStore, data: bytes) -> str | None:
    found = objects.read(MANIFEST)
    return found[1] if found is not None and found[0] == data else None


def replay_and_fence(objects: ObjectStore, claim: Claim, replay: Replay) -> TakenLog:
    """Apply what the log has beside the tables, end it with a fence, and make sure that the claim still stands.

    Args:
        objects: The place of the bundle.
        claim: The claim, whose tables are open.
        replay: Applies the objects.

    Raises:
        LogFencedError: There is a later claim.
        StoreCorruptedError: An object is damaged.
        Exception: As `ObjectStore` raises.
    """
    manifest = claim.manifest
    for number, found in objects_from(objects, manifest.start):
        while found is None:
            fence = LogObject(manifest.epoch, manifest.owner, number, None).encode()
            if objects.create(log_name(number), fence):
                break
            found = _read(objects, number)
        if found is None:
            break
        if found.epoch > manifest.epoch:
            raise LogFencedError(f"A later owner writes to the log in {objects}")
        replay.take(found)
    again = objects.read(MANIFEST)
    if again is None or again[0] != manifest.encode():
        raise LogFencedError(f"Another one has claimed the log in {objects} meanwhile")
    fences = tuple(sorted({*manifest.fences, *replay.fences, number}))
    return TakenLog(claim, number + 1, fences, replay.size_bytes)


def objects_from(objects: ObjectStore, start: int) -> Iterator[tuple[int, LogObject | None]]:
    """Give the objects of a log and their numbers, some of them read ahead; None for one that is not there.

    It goes on behind that one: the caller decides where the log ends. In a short log few are looked for behind its
    end, each of which costs as much as an object.
    """
    pool = ThreadPoolExecutor(_READS_AHEAD, thread_name_prefix="replay")
    ahead: list[Future[LogObject | None]] = []
    number = start
    try:
        while True:
            while len(ahead) < min(_READS_AHEAD, _READS_AT_FIRST + number - start):
                ahead.append(pool.submit(_read, objects, number + len(ahead)))
            yield number, ahead.pop(0).result()
            number += 1
    finally:
        pool.shutdown(cancel_futures=True)


def _read(objects: ObjectStore, number: int) -> LogObject | None:
    found = objects.read(log_name(number))
    return None if found is None else LogObject.decode(found[0], number, str(objects))


def sweep(objects: ObjectStore, served: TakenLog) -> None:
    """Delete what owners before have left: objects before the start but fences, and tables that no manifest names.

    Called by a serving owner. No manifest can come to name them again, and no number before a start is read again.
    """
    manifest = served.claim.manifest
    named = {table.name for table in manifest.tables.values()}
    try:
        stale = [name for name in objects.names(TABLES) if name not in named and _is_before(name, manifest.epoch)]
        for name in objects.names(LOGS):
            number = log_number(name)
            if number is not None and number < manifest.start and number not in served.fences:
                stale.append(name)
        objects.delete_all(stale)
    # What stays takes room, until the next owner.
    except Exception as error:
        logger.warning("objects that nobody needs in %s are deleted by the next owner: %s", objects, error)


def _is_before(table: str, epoch: int) -> bool:
    found = epoch_of(table)
    return found is not None and found < epoch
