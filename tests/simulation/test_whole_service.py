"""The whole service but the wire, by seed: all that failed once, and fresh ones for as long as there is time.

Fresh seeds begin at a number that each change of the code changes, so CI and a developer run the same ones; what fails
is repeated exactly by the command that is printed with it, and belongs into `failed_seeds.py` with its fix. `make
simulate` runs others, chosen anew each time; `docs/simulation.md` says what a run is and what it is judged by.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.simulation.failed_seeds import FAILED_SEEDS
from tests.simulation.simulate import first_seed_of_source, replay_command, report, simulate
from tests.simulation.whole_service.variants import OBJECTS

SECONDS_MAX = float(os.environ.get("SIMULATION_SECONDS", "60" if os.environ.get("CI") else "15"))
"""How long fresh seeds are run in one run of the tests; longer in CI."""


@pytest.mark.parametrize(
    ("seed", "variant"),
    # Those of a mutant are run by `test_simulation_discriminates`.
    [(failed.seed, failed.variant) for failed in FAILED_SEEDS if failed.mutant is None],
)
def test_a_seed_that_failed_once_fails_no_more(seed: int, variant: str | None) -> None:
    """`failed_seeds.py` says what each showed."""
    result = simulate(seed, variant)

    assert not result.complaints, report(result, variant)


@pytest.mark.exhaustive
@pytest.mark.timeout(SECONDS_MAX + 600)
@pytest.mark.parametrize("variant", [None, OBJECTS])
def test_no_fresh_seed_breaks_a_promise(variant: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed command repeats a failure; `SIMULATION_FIRST` begins at the same seed again."""
    first = int(os.environ.get("SIMULATION_FIRST", first_seed_of_source()))
    # Captured, so that every failure shows it: a worker of pytest-xdist has no terminal.
    sys.stdout.write(f"fresh seeds from {first} on: SIMULATION_FIRST={first} runs them again\n")
    until = time.monotonic() + SECONDS_MAX
    seeds = deliveries = 0
    while seeds == 0 or time.monotonic() < until:
        try:
            result = simulate(first + seeds, variant)
        except BaseException as error:
            # Also where a time limit ends it.
            error.add_note(f"replay: {replay_command(first + seeds, variant)}")
            raise
        seeds += 1
        deliveries += result.deliveries

        assert not result.complaints, report(result, variant)

    with capsys.disabled():
        sys.stdout.write(f"\n{seeds} fresh seeds from {first} on, {deliveries} deliveries\n")


@pytest.mark.parametrize(
    ("seed", "variant"),
    [
        (3, None),
        pytest.param(8, None, marks=pytest.mark.exhaustive),
        (21, None),
        (3, OBJECTS),
        pytest.param(8, OBJECTS, marks=pytest.mark.exhaustive),
    ],
)
def test_a_seed_is_the_same_run_in_every_process(seed: int, variant: str | None) -> None:
    """Neither the order of sets nor earlier runs change a run: else a failing seed could not be repeated."""
    script = Path(__file__).parent / "simulate.py"
    ends = [
        subprocess.run(
            [sys.executable, str(script), "--seed", str(seed), *([] if variant is None else ["--variant", variant])],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    digests = [simulate(seed, variant).digest for _ in range(2)]

    assert len(set(digests)) == 1, replay_command(seed, variant)
    assert f"digest {digests[0]}" in ends[0]
    assert ends[0] == ends[1], replay_command(seed, variant)
