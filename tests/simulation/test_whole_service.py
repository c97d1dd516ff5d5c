"""The whole service but the wire, by seed: some that failed once, and fresh ones for as long as there is time.

`make simulate` runs more of them; `whole_service` says what a run is and what it is judged by.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from failed_seeds import FAILED_SEEDS
from simulate import replay_command, report, simulate

FRESH_SECONDS = float(os.environ.get("SIMULATION_SECONDS", "120" if os.environ.get("CI") else "15"))
"""How long fresh seeds are run: two minutes in CI."""


@pytest.mark.parametrize(("seed", "variant"), [(failed.seed, failed.variant) for failed in FAILED_SEEDS])
def test_a_seed_that_failed_once_fails_no_more(seed: int, variant: str | None) -> None:
    """What each showed is said in `failed_seeds.py`."""
    result = simulate(seed, variant)

    assert not result.complaints, report(result, variant)


@pytest.mark.timeout(FRESH_SECONDS + 600)
def test_no_fresh_seed_breaks_a_promise() -> None:
    """Other seeds each time; what fails is repeated by the command that is printed."""
    first = random.SystemRandom().randrange(2**32)
    until = time.monotonic() + FRESH_SECONDS
    seeds = deliveries = 0
    while seeds == 0 or time.monotonic() < until:
        result = simulate(first + seeds)
        seeds += 1
        deliveries += result.deliveries

        assert not result.complaints, report(result)

    sys.stdout.write(f"{seeds} fresh seeds from {first} on, {deliveries} deliveries\n")


@pytest.mark.parametrize("seed", [3, 8])
def test_a_seed_is_the_same_run_in_every_process(seed: int) -> None:
    """Whatever the order of sets is there: else a failing seed could not be repeated."""
    script = Path(__file__).parent / "simulate.py"
    ends = [
        subprocess.run(
            [sys.executable, str(script), "--seed", str(seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        for hash_seed in ("1", "2")
    ]

    assert "digest" in ends[0]
    assert ends[0] == ends[1], replay_command(seed)
