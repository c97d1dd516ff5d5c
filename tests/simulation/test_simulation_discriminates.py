"""The simulation still finds the faults for which it was written: each is put back, and its recorded seed fails."""

import pytest

from tests.simulation.failed_seeds import FAILED_SEEDS, FailedSeed
from tests.simulation.known_mutants import FOUND, ITEMS, OWNERS
from tests.simulation.mutants import TextGoneError, judge
from tests.simulation.simulate import report, simulate

_MUTANTS = {mutant.name: mutant for mutant in (*ITEMS, *FOUND, *OWNERS)}


# Each kind of fault is found like the others, so `make test` runs two.
_RECORDED = [one for one in FAILED_SEEDS if one.mutant]
_FIRST, _OTHERS = _RECORDED[:2], [pytest.param(one, marks=pytest.mark.exhaustive) for one in _RECORDED[2:]]


@pytest.mark.parametrize("recorded", [*_FIRST, *_OTHERS], ids=lambda one: one.mutant)
def test_a_fault_that_is_put_back_fails_its_recorded_seed_which_passes_without_it(recorded: FailedSeed) -> None:
    """Where events or choices have changed since, the seed is another run: then another seed is to be recorded."""
    assert recorded.mutant is not None
    refresh = (
        f"python tests/simulation/mutants.py --group items found owners --only {recorded.mutant} --small "
        "says which seed finds it first; record that one in failed_seeds.py"
    )
    mutant = _MUTANTS[recorded.mutant]

    result = simulate(recorded.seed, recorded.variant)
    try:
        verdict = judge(mutant, [recorded.seed], ends_at_first=True)
    except TextGoneError as error:
        pytest.fail(f"{error}; choose its equal in the code of today in known_mutants.py, then {refresh}")

    assert not result.complaints, report(result)
    assert verdict.failed, f"seed {recorded.seed} does not find {recorded.mutant} any more: {refresh}"
    # A run that could not begin is no finding.
    assert verdict.failed[0][0] == recorded.seed, verdict.failed
    assert not verdict.failed[0][1].startswith("the simulation failed"), verdict.failed
