"""The whole service but the wire, by seed: some that failed once, and a stretch of others for as long as there is time.

Not yet fresh ones in each run: about one seed in a hundred still fails (issue 13 stays open for it), and a run of the
tests would fail by chance. `SIMULATION_FIRST=$RANDOM` chooses others.

`make simulate` runs more of them; `whole_service` says what a run is and what it is judged by.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.simulation.failed_seeds import FAILED_SEEDS
from tests.simulation.simulate import replay_command, report, simulate

SECONDS_MAX = float(os.environ.get("SIMULATION_SECONDS", "120" if os.environ.get("CI") else "15"))
"""How long seeds are run: two minutes in CI."""
SEEDS_MAX = 90
FIRST_SEED = int(os.environ.get("SIMULATION_FIRST", "0"))


@pytest.mark.parametrize(("seed", "variant"), [(failed.seed, failed.variant) for failed in FAILED_SEEDS])
def test_a_seed_that_failed_once_fails_no_more(seed: int, variant: str | None) -> None:
    """What each showed is said in `failed_seeds.py`."""
    result = simulate(seed, variant)

    assert not result.complaints, report(result, variant)


@pytest.mark.timeout(SECONDS_MAX + 600)
def test_no_seed_breaks_a_promise() -> None:
    """What fails is repeated by the command that is printed."""
    until = time.monotonic() + SECONDS_MAX
    seeds = deliveries = 0
    while seeds == 0 or (seeds < SEEDS_MAX and time.monotonic() < until):
        result = simulate(FIRST_SEED + seeds)
        seeds += 1
        deliveries += result.deliveries

        assert not result.complaints, report(result)

    sys.stdout.write(f"{seeds} seeds from {FIRST_SEED} on, {deliveries} deliveries\n")


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
