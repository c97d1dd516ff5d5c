"""Every order of events of the log on object storage, within bounds.

    python tests/simulation/object_log_model.py [--owners 2] [--epochs 3] [--entries 3] [--checkpoints 2]
        [--faults 1] [--depth 1] [--states 3000000] [--walks 0] [--seed 1]
        [--without fences|second-look|manifest-first|owner]

Owners stall, die and come back; requests land late, twice or without an answer; deletions land at any time.

The rules are those of `managed_ledger.objects`: `takeover`, `bundle_checkpoints`, `shipped_database`. `--without`
leaves one out, and shows the shortest way to what it prevents. `--walks` takes random ways of 200 steps.

A stall is an owner that takes no step; a late request waits in `net` while others land. Reads are one step, since an
answer that is late equals an owner that stalls after it.
"""

import argparse
import random
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple

FENCE = "fence"
STEPS_OF_A_WALK = 200


class Rule(StrEnum):
    """A rule that can be left out."""

    FENCES = "fences"
    """Fences are never deleted."""
    SECOND_LOOK = "second-look"
    """The manifest is read again after the fence."""
    MANIFEST_FIRST = "manifest-first"
    """A deletion is asked for once the manifest that makes it useless is known to be stored."""
    OWNER = "owner"
    """The manifest and the log have the owner's name, not its epoch alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far the model goes."""

    owners: int = 2
    epochs: int = 3
    entries: int = 3
    checkpoints: int = 2
    faults: int = 1
    """Deaths, lost answers, requests that land twice."""
    depth: int = 1
    """Rounds under way of one owner."""
    states: int = 3_000_000


class StoredManifest(NamedTuple):
    """The manifest; `applied` stands for the tables."""

    version: int
    epoch: int
    owner: int
    start: int
    applied: tuple[str, ...]
    fences: frozenset[int]


class Request(NamedTuple):
    """A request on its way: `kind` is change, create or delete; `place` is a version of the manifest or a number."""

    kind: str
    owner: int
    epoch: int
    place: int
    value: Any = None


class OwnerState(NamedTuple):
    """An owner; `known` is the manifest that it read last or has written."""

    phase: str = "idle"
    epoch: int = 0
    known: StoredManifest | None = None
    next: int = 0
    state: tuple[str, ...] = ()
    fences: frozenset[int] = frozenset()
    highest: int = 0
    appends: tuple[Request, ...] = ()
    """Under way, oldest first."""
    asked: Request | None = None
    """A claim, a fence or a checkpoint under way."""


class ModelWorld(NamedTuple):
    """All of it at one moment."""

    manifest: StoredManifest
    log: tuple[tuple[int, tuple[int, int, str]], ...]
    """Number, and the epoch, the owner and the entry, sorted."""
    net: frozenset[Request]
    owners: tuple[OwnerState, ...]
    acknowledged: frozenset[str] = frozenset()
    entries: int = 0
    checkpoints: int = 0
    faults: int = 0

    def with_owner(self, place: int, owner: OwnerState, **changed: Any) -> "ModelWorld":
        """This with another state of an owner."""
        return self._replace(owners=(*self.owners[:place], owner, *self.owners[place + 1 :]), **changed)

    def asking(self, place: int, owner: OwnerState, request: Request, **changed: Any) -> "ModelWorld":
        """This with a request of an owner under way."""
        return self.with_owner(place, owner, net=self.net | {request}, **changed)


class EntryLostError(Exception):
    """A world that must not be."""


class Walked(NamedTuple):
    """What was walked."""

    states: int
    is_all: bool
    """Whether no state is left within the bounds."""
    acknowledged_max: int
    broken: str = ""
    """What went wrong; empty if nothing did."""
    way: tuple[str, ...] = ()
    """The steps to it."""


def first_world(bounds: Bounds) -> ModelWorld:
    """The world before anything."""
    return ModelWorld(StoredManifest(0, 0, -1, 1, (), frozenset()), (), frozenset(), (OwnerState(),) * bounds.owners)


def check(world: ModelWorld) -> None:
    """Have a takeover that nothing disturbs find all acknowledged entries, and each once.

    Raises:
        EntryLostError: It would not.
    """
    log, number, highest, found = dict(world.log), world.manifest.start, 0, list(world.manifest.applied)
    while number in log:
        epoch, _, what = log[number]
        if epoch >= highest:
            highest = epoch
            if what != FENCE:
                found.append(what)
        number += 1
    if len(set(found)) != len(found):
        raise EntryLostError(f"an entry twice: {found}")
    if not world.acknowledged <= set(found):
        raise EntryLostError(f"acknowledged but gone: {sorted(world.acknowledged - set(found))}")


class ObjectLogModel:
    """The steps that can follow.

    Args:
        bounds: How far to go.
        without: The rule that is left out.
    """

    def __init__(self, bounds: Bounds, without: Rule | None = None) -> None:
        self._bounds, self._without = bounds, without

    def steps(self, world: ModelWorld) -> Iterator[tuple[str, ModelWorld]]:
        """Each step that can come next, and the world after it."""
        log = dict(world.log)
        for place, owner in enumerate(world.owners):
            yield from self._own_steps(world, log, place, owner)
        for request in world.net:
            yield from self._landings(world, log, request)

    def _own_steps(
        self, world: ModelWorld, log: dict[int, Any], i: int, me: OwnerState
    ) -> Iterator[tuple[str, ModelWorld]]:
        if me.phase != "idle" and world.faults < self._bounds.faults:
            yield f"{i} dies", world.with_owner(i, OwnerState(), faults=world.faults + 1)
        for request in (*me.appends[:1], me.asked):
            if request and request not in world.net:
                yield f"{i} asks again: {request.kind}", world._replace(net=world.net | {request})
        match me.phase:
            case "idle" if world.manifest.epoch < self._bounds.epochs:
                yield self._claim(world, i)
            case "replaying":
                yield self._replay(world, log, i, me)
            case "fenced":
                yield self._second_look(world, log, i, me)
            case "serving":
                yield from self._serve(world, i, me)

    def _claim(self, world: ModelWorld, i: int) -> tuple[str, ModelWorld]:
        read = world.manifest
        epoch = read.epoch + 1
        made = read._replace(version=read.version + 1, epoch=epoch, owner=self._name(i))
        request = Request("change", i, epoch, read.version, made)
        return f"{i} claims epoch {epoch}", world.asking(i, OwnerState("claimed", epoch, read, asked=request), request)

    def _replay(self, world: ModelWorld, log: dict[int, Any], i: int, me: OwnerState) -> tuple[str, ModelWorld]:
        value = log.get(me.next)
        if value is None:
            request = Request("create", i, me.epoch, me.next, (me.epoch, self._name(i), FENCE))
            return f"{i} makes fence {me.next}", world.asking(i, me._replace(phase="fencing", asked=request), request)
        if value[0] > me.epoch:
            return f"{i} meets a later owner", world.with_owner(i, OwnerState())
        state, fences = me.state, me.fences
        if value[2] == FENCE:
            fences |= {me.next}
        elif value[0] >= me.highest:
            state += (value[2],)
        after = me._replace(next=me.next + 1, state=state, fences=fences, highest=max(me.highest, value[0]))
        return f"{i} replays {me.next}", world.with_owner(i, after)

    def _second_look(self, world: ModelWorld, log: dict[int, Any], i: int, me: OwnerState) -> tuple[str, ModelWorld]:
        if world.manifest.version != me.known.version and self._without is not Rule.SECOND_LOOK:
            return f"{i} finds its claim gone", world.with_owner(i, OwnerState())
        kept = frozenset() if self._without is Rule.FENCES else me.known.fences | me.fences
        swept = {Request("delete", i, me.epoch, n) for n in log if n < me.known.start and n not in kept}
        return f"{i} serves, and sweeps", world.with_owner(i, me._replace(phase="serving"), net=world.net | swept)

    def _serve(self, world: ModelWorld, i: int, me: OwnerState) -> Iterator[tuple[str, ModelWorld]]:
        bounds = self._bounds
        if len(me.appends) < bounds.depth and world.entries < bounds.entries:
            entry, number = f"{me.epoch}.{world.entries}", me.next + len(me.appends)
            request = Request("create", i, me.epoch, number, (me.epoch, self._name(i), entry))
            after = me._replace(appends=(*me.appends, request))
            yield f"{i} appends {entry} at {number}", world.asking(i, after, request, entries=world.entries + 1)
        if me.asked is None and world.checkpoints < bounds.checkpoints and me.next > me.known.start:
            fences = me.known.fences | me.fences
            made = StoredManifest(me.known.version + 1, me.epoch, self._name(i), me.next, me.state, fences)
            request = Request("change", i, me.epoch, me.known.version, made)
            after = world.asking(i, me._replace(asked=request), request, checkpoints=world.checkpoints + 1)
            if self._without is Rule.MANIFEST_FIRST:
                after = after._replace(net=after.net | self._deletions(i, me, made))
            yield f"{i} writes a checkpoint up to {me.next}", after

    def _deletions(self, i: int, me: OwnerState, made: StoredManifest) -> frozenset[Request]:
        kept = () if self._without is Rule.FENCES else made.fences
        gone = (number for number in range(me.known.start, made.start) if number not in kept)
        return frozenset(Request("delete", i, me.epoch, number) for number in gone)

    def _name(self, i: int) -> int:
        return 0 if self._without is Rule.OWNER else i

    def _landings(self, world: ModelWorld, log: dict[int, Any], request: Request) -> Iterator[tuple[str, ModelWorld]]:
        """A request lands: with an answer, or without one, and perhaps once more."""
        kind, i, epoch, place, value = request
        net = world.net - {request}
        if kind == "delete":
            log = {number: what for number, what in log.items() if number != place}
            yield f"deletion of {place} lands", world._replace(net=net, log=tuple(sorted(log.items())))
            return
        if kind == "create":
            is_done = place not in log
            changed = world._replace(log=tuple(sorted({**log, place: value}.items()))) if is_done else world
            is_own = is_done or log[place] == value
        else:
            is_done = world.manifest.version == place
            changed = world._replace(manifest=value) if is_done else world
            is_own = is_done or world.manifest == value
        text = f"{kind} {place} of {i} lands: {'done' if is_done else 'refused'}"
        me = world.owners[i]
        is_first = request == me.asked or request in me.appends[:1]
        if me.epoch != epoch or not (is_first or request in me.appends):
            yield f"{text}, nobody waits", changed._replace(net=net)
            return
        # An answer of one that waits for an earlier one comes by asking again: appends are settled oldest first.
        if is_first:
            yield text, self._answered(changed._replace(net=net), me, request, is_own=is_own)
        if world.faults < self._bounds.faults:
            yield f"{text}, its answer is lost", changed._replace(net=net, faults=world.faults + 1)
            if is_done and is_first:
                after = self._answered(changed, me, request, is_own=is_own)
                yield f"{text}, it will land again", after._replace(faults=world.faults + 1)

    def _answered(self, world: ModelWorld, me: OwnerState, request: Request, *, is_own: bool) -> ModelWorld:
        i, acknowledged, net = request.owner, world.acknowledged, world.net
        match me.phase:
            case "fencing" if is_own:
                me = me._replace(phase="fenced", next=me.next + 1, fences=me.fences | {me.next}, asked=None)
            case "fencing":
                me = me._replace(phase="replaying", asked=None)
            case _ if not is_own:
                me = OwnerState()
            case "claimed":
                made = request.value
                me = me._replace(phase="replaying", known=made, next=made.start, state=made.applied, asked=None)
            case _ if request in me.appends:
                entry = request.value[2]
                acknowledged |= {entry}
                me = me._replace(appends=me.appends[1:], next=me.next + 1, state=(*me.state, entry))
            case _:
                if self._without is not Rule.MANIFEST_FIRST:
                    net |= self._deletions(i, me, request.value)
                me = me._replace(known=request.value, asked=None)
        return world.with_owner(i, me, acknowledged=acknowledged, net=net)


def explore(bounds: Bounds, without: Rule | None = None) -> Walked:
    """Walk all states within the bounds, the nearest first, up to the first one that must not be."""
    model, first = ObjectLogModel(bounds, without), first_world(bounds)
    came: dict[ModelWorld, tuple[ModelWorld, str] | None] = {first: None}
    queue, most = deque([first]), 0
    while queue and len(came) < bounds.states:
        world = queue.popleft()
        for text, after in model.steps(world):
            if after in came:
                continue
            came[after] = (world, text)
            try:
                check(after)
            except EntryLostError as error:
                return Walked(len(came), False, most, str(error), _way_to(after, came))
            most = max(most, len(after.acknowledged))
            queue.append(after)
    return Walked(len(came), not queue, most)


def _way_to(world: ModelWorld, came: dict[ModelWorld, tuple[ModelWorld, str] | None]) -> tuple[str, ...]:
    way: list[str] = []
    while (before := came[world]) is not None:
        world, text = before
        way.append(text)
    return tuple(reversed(way))


def wander(bounds: Bounds, walks: int, seed: int, without: Rule | None = None) -> Walked:
    """Take random ways; what ends owners is rare in them, or nothing gets far."""
    model, draw, steps, most = ObjectLogModel(bounds, without), random.Random(seed), 0, 0
    for _ in range(walks):
        world, way = first_world(bounds), []
        for _ in range(STEPS_OF_A_WALK):
            choices = list(model.steps(world))
            if not choices:
                break
            ((text, world),) = draw.choices(choices, [_weight(text) for text, _ in choices])
            way.append(text)
            steps += 1
            try:
                check(world)
            except EntryLostError as error:
                return Walked(steps, False, most, str(error), tuple(way))
        most = max(most, len(world.acknowledged))
    return Walked(steps, False, most)


def _weight(text: str) -> float:
    if "dies" in text or "claims" in text:
        return 0.03
    return 0.2 if "lost" in text or "again" in text else 1


def main() -> None:
    """Walk as the arguments say, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Bounds):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    parser.add_argument("--without", type=Rule, choices=list(Rule))
    parser.add_argument("--walks", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = vars(parser.parse_args())
    without, walks, seed = (options.pop(name) for name in ("without", "walks", "seed"))
    bounds = Bounds(**options)
    walked = wander(bounds, walks, seed, without) if walks else explore(bounds, without)
    if walked.broken:
        sys.exit("\n    ".join((f"BROKEN after {len(walked.way)} steps: {walked.broken}", *walked.way)))
    extent = f"{walks:,} walks" if walks else "all" if walked.is_all else "the nearest"
    sys.stdout.write(f"held: {walked.states:,} states, {extent}; up to {walked.acknowledged_max} acknowledged\n")


if __name__ == "__main__":
    main()
