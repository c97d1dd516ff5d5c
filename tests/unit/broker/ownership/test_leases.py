"""Services that share a prefix: each bundle has an owner soon, whatever happens to one of them, and one at a time."""

import asyncio
from random import Random

import pytest

from postdate.broker.ownership.member_objects import MEMBERS
from postdate.broker.ownership.owners import OwnershipError
from tests.helpers.fakes.member_world import MemberWorld, run_members
from tests.helpers.seeds import seeds

BOUNDS_S = {10: 15, 2: 4}
"""From a death to the last bundle at another service, by the lease."""


@pytest.mark.parametrize("count", range(1, 6))
def test_services_that_start_together_share_from_the_start(count: int) -> None:
    async def scenario() -> None:
        world = MemberWorld(bundles=7)

        await world.start(*"abcde"[:count])

        await world.until(world.is_whole, 2)
        await asyncio.sleep(30)
        assert world.shares()[-1] - world.shares()[0] <= 1
        assert world.moves() == 7
        assert world.fenced == []

    run_members(scenario)


def test_the_load_of_all_topics_is_summed_for_renewals_and_lists_alone() -> None:
    async def scenario() -> None:
        world = MemberWorld(bundles=2)
        await world.start("a", "b")
        await world.until(world.is_whole, 2)
        await asyncio.sleep(10)
        asked: list[object] = []

        def load_of(bundle: object) -> float:
            asked.append(bundle)
            return 10.0

        world.keeper("a").load_of = load_of  # type: ignore[method-assign]

        await asyncio.sleep(20)
        assert len(asked) == 10, "two seconds between renewals"
        asked.clear()
        owners = [world.services["a"].owner_of(bundle) for bundle in world.bundles]

        assert sorted(one.name for one in owners if one is not None) == ["a", "b"]
        assert not asked
        assert [one.load for one in world.services["a"].services()] == [10.0, 10.0]

    run_members(scenario)


@pytest.mark.parametrize("latency_s", [0.001, 0.2])
@pytest.mark.parametrize("lease_s", BOUNDS_S)
def test_the_bundles_of_a_dead_service_are_back_in_time(lease_s: int, latency_s: float) -> None:
    async def scenario(seed: int) -> None:
        world = MemberWorld(lease_s=lease_s, bundles=12, seed=seed)
        world.faults.latency_s = latency_s
        await world.start("a", "b", "c")
        await asyncio.sleep(10 + world.chance.random() * lease_s)
        before = world.owners()

        world.kill("a")

        took_s = await world.until(world.is_whole, BOUNDS_S[lease_s])
        assert took_s > lease_s * 0.5
        assert all(world.owners()[bundle] == owner for bundle, owner in before.items() if owner != "a")
        assert world.shares() == [6, 6]
        assert sum(one.figures().takeovers for one in world.services.values()) == 4
        assert world.fenced == []

    for seed in range(3):
        run_members(lambda seed=seed: scenario(seed))  # type: ignore[misc]


@pytest.mark.parametrize("lease_s", BOUNDS_S)
def test_a_service_that_stops_hands_over_within_a_second(lease_s: int) -> None:
    async def scenario() -> None:
        world = MemberWorld(lease_s=lease_s)
        await world.start("a", "b", "c")
        await world.until(world.is_whole, 2)
        await asyncio.sleep(7.3)

        stopping = asyncio.create_task(world.stop("a"))

        await asyncio.sleep(0.05)
        assert await world.until(lambda: world.is_whole() and not world.keeper("a").opened, 1) <= 0.95
        await stopping
        assert world.shares() == [2, 2]
        assert len(world.objects.objects) == 2
        assert world.fenced == []

    run_members(scenario)


def test_one_that_joins_takes_its_share_and_no_bundle_is_without_an_owner_for_long() -> None:
    async def scenario() -> None:
        world = MemberWorld(bundles=6)
        await world.start("a")
        await world.until(world.is_whole, 3)
        for name in "bc":
            before, since_s = world.owners(), world.loop.time()

            await world.start(name)

            await asyncio.sleep(20)
            assert world.is_whole()
            assert {world.owners()[one] for one in world.bundles if world.owners()[one] != before[one]} == {name}
            assert world.longest_gap_s(since_s) <= 1
        assert world.shares() == [2, 2, 2]
        assert world.moves() == 6 + 3 + 2
        assert set(world.keeper("c").opened) <= set(world.keeper("c").warmed)
        assert world.fenced == []

    run_members(scenario)


def test_a_storage_that_is_gone_for_a_minute_takes_the_bundles_and_brings_them_back() -> None:
    async def scenario() -> None:
        world = MemberWorld(bundles=6)
        await world.start("a", "b", "c")
        await world.until(world.is_whole, 2)
        world.faults.is_gone = True

        await world.until(lambda: not world.owners(), 10.1)
        assert not any(one.may_deliver(bundle) for one in world.services.values() for bundle in world.bundles)
        await asyncio.sleep(50)
        world.faults.is_gone = False

        await world.until(world.is_whole, 10)
        await asyncio.sleep(30)
        assert world.shares() == [2, 2, 2]
        assert [one.figures().lapses for one in world.services.values()] == [1, 1, 1]
        assert world.moves() <= 12 + 2
        assert len(world.objects.objects) == 3

    run_members(scenario)


def test_a_bundle_whose_opening_outlives_the_lease_is_closed_before_it_is_opened_again() -> None:
    """Or the service would believe to have one that it has closed."""

    async def scenario() -> None:
        world = MemberWorld()
        starting = asyncio.create_task(world.prepare("a"))
        world.keeper("a").open_s = 25
        await asyncio.sleep(5)
        world.faults.is_gone = True
        await asyncio.sleep(12)
        assert any("lease of this service is over" in one for one in world.services["a"].problems())
        world.faults.is_gone = False
        await starting

        await asyncio.sleep(120)
        assert world.is_whole()
        assert {one for one in world.bundles if world.services["a"].is_own(one)} == world.keeper("a").opened
        assert not world.services["a"].problems()

    run_members(scenario)


def test_a_bundle_that_a_service_cannot_open_goes_to_another_one() -> None:
    """Its disk may be full, or its cache damaged, and that service lives on."""

    async def scenario() -> None:
        world = MemberWorld()
        await world.start("a", "b")
        await world.until(world.is_whole, 2)
        before = set(world.keeper("a").opened)
        world.keeper("b").failures = 1_000

        world.kill("a")
        await asyncio.sleep(30)
        assert set(world.owners()) == set(world.bundles) - before
        assert len(world.services["b"].problems()) == 2
        await world.prepare("c")

        await world.until(world.is_whole, 30)
        assert world.keeper("c").opened >= before
        await asyncio.sleep(200)
        assert world.is_whole()
        assert world.moves() == 4 + 2 + 1, "one of the others, as an equal share of those"
        world.keeper("b").failures = 0
        await world.stop("c")
        await world.until(world.is_whole, 60)

    run_members(scenario)


def test_a_look_up_waits_for_the_owner_after_a_dead_one() -> None:
    async def scenario() -> None:
        world = MemberWorld()
        await world.start("a", "b")
        await world.until(world.is_whole, 2)
        asked = world.services["b"]
        bundle, kept = min(world.keeper("a").opened), min(world.keeper("b").opened)

        world.kill("a")
        await asyncio.sleep(5)
        assert (asked.is_moving(bundle), asked.is_moving(kept)) == (True, False)
        began_s = world.loop.time()
        await asked.moved(bundle)

        assert bundle in world.keeper("b").opened
        assert 5 < world.loop.time() - began_s < 8
        owner = asked.owner_of(bundle)
        assert owner is not None
        assert owner.name == "b"

        world.faults.is_gone = True
        await world.until(lambda: not world.owners(), 10.1)
        began_s = world.loop.time()
        await asked.moved(bundle)
        assert world.loop.time() - began_s == pytest.approx(15, abs=0.1)

    run_members(scenario)


def test_a_lapse_ends_a_hand_over_that_waits_for_the_storage() -> None:
    async def scenario() -> None:
        world = MemberWorld()
        await world.start("a", "b")
        await world.until(world.is_whole, 2)
        bundle = min(world.keeper("a").opened)
        world.keeper("a").given_up = asyncio.Event()
        moving = asyncio.create_task(world.services["a"].transfer(bundle, "b"))
        await asyncio.sleep(1)
        world.faults.is_gone = True

        await world.until(lambda: not world.keeper("a").opened, 10.2)

        world.faults.is_gone = False
        await asyncio.wait({moving})
        await world.until(world.is_whole, 30)

    run_members(scenario)


def test_two_services_of_one_name_say_so() -> None:
    async def scenario() -> None:
        world = MemberWorld()
        await world.start("a")
        first = world.services["a"]
        assert not first.problems()

        await world.prepare("a")
        await asyncio.sleep(5)

        for one in (first, world.services["a"]):
            assert any("the name a too" in problem for problem in one.problems())

    run_members(scenario)


def test_a_start_waits_for_a_storage_that_is_slow_at_first() -> None:
    async def scenario() -> None:
        world = MemberWorld()
        world.faults.latency_s = 6
        starting = asyncio.create_task(world.prepare("a"))
        await asyncio.sleep(20)
        assert not starting.done()
        world.faults.latency_s = 0.02
        await starting
        await world.until(world.is_whole, 5)
        assert not world.services["a"].problems()

        world.faults.latency_s = 6
        began_s = world.loop.time()
        with pytest.raises(TimeoutError):
            await world.prepare("b")
        assert 30 <= world.loop.time() - began_s <= 34

    run_members(scenario)


def test_a_storage_that_is_slow_and_fails_and_moves_nothing() -> None:
    async def scenario() -> None:
        world = MemberWorld(bundles=6)
        await world.start("a", "b", "c")
        await world.until(world.is_whole, 2)
        world.faults.latency_s, world.faults.failing_share, world.faults.hanging_share = 0.2, 0.1, 0.01

        await asyncio.sleep(200)

        assert world.is_whole()
        assert world.moves() == 6
        assert all(one.figures().members == 3 for one in world.services.values())

    run_members(scenario)


def test_a_service_alone_cut_off_from_the_storage_loses_its_bundles_to_the_others() -> None:
    async def scenario() -> None:
        world = MemberWorld()
        await world.start("a", "b")
        await world.until(world.is_whole, 2)
        await asyncio.sleep(5)
        (bundle, *_) = world.keeper("a").opened
        deliverable: list[float] = []
        renewed_s = world.loop.time()

        world.executors["a"].is_dead = True
        while bundle in world.keeper("a").opened:
            if world.services["a"].may_deliver(bundle):
                deliverable.append(world.loop.time())
            await asyncio.sleep(0.05)

        assert max(deliverable) <= renewed_s + 8
        assert not world.services["a"].is_own(bundle)
        await world.until(world.is_whole, 5)
        assert world.fenced == []
        world.executors["a"].is_dead = False
        await world.until(lambda: world.shares() == [2, 2] and world.is_whole(), 20)
        assert world.services["a"].figures().lapses == 1

    run_members(scenario)


def test_a_transfer_moves_its_bundle_alone_and_holds_until_its_target_leaves() -> None:
    async def scenario() -> None:
        world = MemberWorld()
        await world.start("a", "b", "c")
        await world.until(world.is_whole, 2)
        before = world.owners()
        (most,) = [one for one in world.keepers() if len(one.opened) == 2]
        to, third = sorted({"a", "b", "c"} - {most.name})
        (bundle, _) = most.opened

        # Asked of a third service, which neither has it nor gets it.
        await world.services[third].transfer(bundle, to)

        assert world.owners() == {**before, bundle: to}
        assert world.longest_gap_s() <= 1
        await asyncio.sleep(60)
        assert world.owners() == {**before, bundle: to}
        await world.services[to].transfer(bundle)
        assert world.owners()[bundle] != to
        await world.services[third].transfer(bundle, to)
        assert world.owners()[bundle] == to
        await world.stop(to)
        await world.until(world.is_whole, 2)
        assert world.shares() == [2, 2]
        last = world.services[third]
        with pytest.raises(OwnershipError, match=f"no service {to}; those that live: "):
            await last.transfer(bundle, to)
        await world.stop(most.name)
        await asyncio.sleep(1)
        with pytest.raises(OwnershipError, match="no other service"):
            await last.transfer(bundle)

    run_members(scenario)


def test_a_bundle_that_cannot_be_opened_is_tried_again() -> None:
    async def scenario() -> None:
        world = MemberWorld()
        starting = asyncio.create_task(world.prepare("a"))
        world.keeper("a").failures = 9

        await starting

        await world.until(world.is_whole, 20)
        assert all(world.services["a"].is_own(one) for one in world.bundles)

    run_members(scenario)


def test_a_bundle_that_another_one_fenced_is_opened_again_where_nobody_says_to_have_it() -> None:
    async def scenario() -> None:
        world = MemberWorld()
        await world.start("a", "b")
        await world.until(world.is_whole, 2)
        (bundle, *_) = world.keeper("a").opened

        world.keeper("a").opened.discard(bundle)
        world.services["a"].note_lost(bundle)

        assert not world.services["a"].is_own(bundle)
        await world.until(world.is_whole, 10)

    run_members(scenario)


def test_each_service_answers_who_has_a_bundle_and_who_lives() -> None:
    async def scenario() -> None:
        world = MemberWorld()
        await world.start("a", "b")
        await world.until(world.is_whole, 2)
        await asyncio.sleep(3)

        for name, service in world.services.items():
            infos = service.services()
            assert infos[0].name == service.own_name == name
            assert [one.name for one in infos[1:]] == sorted({"a", "b"} - {name})
            assert [one.load for one in infos] == [20, 20]
            for bundle, owner in world.owners().items():
                found = service.owner_of(bundle)
                assert found is not None
                assert (found.name, found.addresses.service_url) == (owner, f"pulsar://{owner}:6650")
                assert service.is_own(bundle) == service.may_deliver(bundle) == (owner == name)

    run_members(scenario)


def test_the_next_owner_of_each_bundle_keeps_a_warm_copy() -> None:
    async def scenario() -> None:
        world = MemberWorld(bundles=6)
        await world.start("a", "b", "c")
        await world.until(world.is_whole, 2)
        await asyncio.sleep(30)
        warm = {one.name: set(one.warmed) for one in world.keepers()}
        lost = set(world.keeper("a").opened)

        world.kill("a")

        await world.until(world.is_whole, 15)
        assert all(bundle in warm[owner] for bundle, owner in world.owners().items() if bundle in lost)

    run_members(scenario)


def test_a_service_asks_the_storage_for_no_more_than_it_must() -> None:
    async def scenario() -> None:
        world = MemberWorld()
        await world.start("a", "b", "c")
        await world.until(world.is_whole, 2)
        await asyncio.sleep(10)
        before = world.executors["a"].calls

        await asyncio.sleep(100)

        # 50 renewals, 50 listings, and two others each half second.
        assert world.executors["a"].calls - before <= 50 + 50 + 2 * 200 + 10

    run_members(scenario)


def test_the_object_of_a_dead_service_goes_in_the_end() -> None:
    async def scenario() -> None:
        world = MemberWorld(lease_s=2)
        await world.start("a", "b")
        world.objects.objects[f"{MEMBERS}foreign"] = b"{}"
        await world.until(world.is_whole, 2)

        world.kill("a")

        await asyncio.sleep(10)
        assert len(world.objects.objects) == 2
        assert world.services["b"].figures().members == 1

    run_members(scenario)


@pytest.mark.slow
def test_after_any_story_each_bundle_has_one_owner_and_shares_are_equal() -> None:
    async def scenario(seed: int) -> None:
        chance = Random(seed)
        lease_s = chance.choice([2, 10])
        world = MemberWorld(lease_s=lease_s, bundles=chance.choice([1, 4, 9]), seed=seed)
        await world.start("s0")
        for number in range(1, 12):
            await asyncio.sleep(chance.uniform(0, 2 * lease_s))
            names = [one.name for one in world.keepers()]
            match chance.randrange(5):
                case 0 | 1 if len(names) < 5:
                    await world.start(f"s{number}")
                case 2 if len(names) > 1:
                    world.kill(chance.choice(names))
                case 3 if len(names) > 1:
                    await world.stop(chance.choice(names))
                case 4:
                    world.faults.latency_s = chance.choice([0.001, 0.02, 0.2])
                    world.faults.is_gone = True
                    await asyncio.sleep(chance.uniform(0, 2 * lease_s))
                    world.faults.is_gone = False

        await asyncio.sleep(6 * lease_s + 10)

        assert world.is_whole()
        assert world.shares()[-1] - world.shares()[0] <= 1
        moves = world.moves()
        await asyncio.sleep(20 * lease_s)
        assert world.moves() == moves
        assert world.fenced == []

    for seed in seeds():
        run_members(lambda seed=seed: scenario(seed))  # type: ignore[misc]
