"""Where bundles go: equal shares, as few moves as that takes, and a plan that its own steps do not change."""

from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.bundles import BundleRange, even_ranges
from postdate.broker.ownership.core.handover import Step, next_step
from postdate.broker.ownership.core.membership import Member
from postdate.broker.ownership.core.placement import place, runners_up

COUNTS = st.integers(1, 16)
NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True)


def members_of(names: list[str], plan: dict[BundleRange, str]) -> list[Member]:
    """Members that have what a plan gives them."""
    return [Member(name, name, opened=frozenset(one for one, to in plan.items() if to == name)) for name in names]


@st.composite
def holdings(draw: st.DrawFn) -> tuple[tuple[BundleRange, ...], list[Member]]:
    """Any bundles at any members, nobody with some of them."""
    bundles, names = even_ranges(draw(COUNTS)), draw(NAMES)
    plan = {one: draw(st.sampled_from([*names, ""])) for one in bundles}
    return bundles, members_of(names, plan)


@given(holdings())
def test_shares_are_equal_and_no_more_moves_than_that_takes(
    given_holdings: tuple[tuple[BundleRange, ...], list[Member]],
) -> None:
    bundles, members = given_holdings

    plan = place(bundles, members)

    counts = [list(plan.values()).count(one.id) for one in members]
    assert max(counts) - min(counts) <= 1
    assert set(plan) == set(bundles)
    kept = sum(plan[bundle] == one.id for one in members for bundle in one.opened)
    share, more = divmod(len(bundles), len(members))
    held = sorted((len(one.opened) for one in members), reverse=True)
    assert kept == sum(min(count, share + (number < more)) for number, count in enumerate(held))


@given(COUNTS, NAMES, st.data())
def test_a_death_moves_the_bundles_of_the_dead_alone_to_the_runners_up(
    count: int, names: list[str], data: st.DataObject
) -> None:
    bundles = even_ranges(count)
    plan = dict(place(bundles, members_of(names, {})))
    dead = data.draw(st.sampled_from(names))
    next_ones = runners_up(bundles, members_of(names, plan), plan)

    after = place(bundles, members_of([one for one in names if one != dead], plan))

    for bundle in bundles:
        if plan[bundle] != dead:
            assert after[bundle] == plan[bundle]
        else:
            assert after.get(bundle) == next_ones.get(bundle)


@given(COUNTS, NAMES)
def test_one_that_joins_gets_its_share_and_nothing_else_moves(count: int, names: list[str]) -> None:
    bundles = even_ranges(count)
    plan = dict(place(bundles, members_of(names, {})))

    after = place(bundles, members_of([*names, "joining"], plan))

    assert {after[bundle] for bundle in bundles if after[bundle] != plan[bundle]} <= {"joining"}
    assert list(after.values()).count("joining") in (count // (len(names) + 1), count // (len(names) + 1) + 1)


@given(holdings(), st.data())
def test_steps_in_any_order_lead_to_the_plan_and_never_to_two_owners(
    given_holdings: tuple[tuple[BundleRange, ...], list[Member]], data: st.DataObject
) -> None:
    """All see all at once here; `tests/unit/broker/ownership/test_leases.py` has those who see it late."""
    bundles, members = given_holdings
    plan = place(bundles, members)
    now = {one.id: one for one in members}
    for _ in range(4 * len(bundles)):
        possible = [
            (bundle, one.id, step)
            for one in now.values()
            for bundle in bundles
            if (step := next_step(bundle, one, [other for other in now.values() if other is not one], plan)) is not None
        ]
        if not possible:
            break
        bundle, name, step = data.draw(st.sampled_from(possible))
        own = now[name]
        match step:
            case Step.OPEN:
                now[name] = own._replace(opened=own.opened | {bundle}, ready=own.ready - {bundle})
            case Step.WARM:
                now[name] = own._replace(ready=own.ready | {bundle})
            case Step.CLOSE:
                now[name] = own._replace(opened=own.opened - {bundle})
        assert place(bundles, now.values()) == plan
        opened = [one for member in now.values() for one in member.opened]
        assert len(opened) == len(set(opened))

    assert {one: name for name, member in now.items() for one in member.opened} == plan


@given(holdings(), st.data())
def test_a_pinned_bundle_stays_while_its_target_lives(
    given_holdings: tuple[tuple[BundleRange, ...], list[Member]], data: st.DataObject
) -> None:
    bundles, members = given_holdings
    wish = data.draw(st.sampled_from(bundles)), data.draw(st.sampled_from(members)).id
    asked = data.draw(st.integers(0, len(members) - 1))
    members[asked] = members[asked]._replace(wanted=dict([wish]))

    plan = place(bundles, members)

    assert plan[wish[0]] == wish[1]
    rest = [list({**plan, wish[0]: ""}.values()).count(one.id) for one in members]
    assert max(rest) - min(rest) <= 1
    leaving = [one._replace(is_leaving=one.id == wish[1]) for one in members]
    assert wish[1] not in place(bundles, leaving).values()
