"""Judges the simulation: in how many seeds it finds each of the faults of `known_mutants.py`.

    python tests/simulation/mutants.py [--group items found owners] [--seeds 300] [--only NAME]

Each fault is put into a copy of the project and seeds are run on it until one fails that passes without it; with
`--all` every seed is run and those that fail are counted. `lab-book.md` has the last tables. A fault whose old
text is gone from the code is named, and the exit status is 2.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.simulation.known_mutants import DISPATCHER, FOUND, ITEMS, OWNERS, SCHEDULED, TRACKER, Mutant
from tests.simulation.whole_service.variants import variant_of

PARTS: Final = (
    "dispatcher",
    "managed_ledger",
    "postdate",
    "snapshot_storage",
    "tracker",
    "tests/simulation",
    "tests/helpers",
)
GROUPS: Final = {
    "dispatcher": DISPATCHER,
    "tracker": TRACKER,
    "items": ITEMS,
    "found": FOUND,
    "scheduled": SCHEDULED,
    "owners": OWNERS,
}


class MutantVerdict(NamedTuple):
    """Whether a mutant was found."""

    seeds: int
    """How many were run."""
    failed: list[tuple[int, str]]
    """Those that failed, with what each complained about first."""


class TextGoneError(Exception):
    """The text that a mutant replaces is not in the code, or stands there more than once."""


def mutate(folder: Path, mutant: Mutant) -> None:
    """Put a fault into the project in a folder."""
    for edit in mutant.edits:
        path = folder / edit.file
        text = path.read_text() if path.exists() else ""
        times = text.count(edit.old)
        if times != 1:
            raise TextGoneError(f"{mutant.name}: {edit.file} has its old text {times} times, not once: {edit.old!r}")
        path.write_text(text.replace(edit.old, edit.new))


def copy_project(folder: Path) -> None:
    """Copy what a simulation needs."""
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))


def run_seeds(
    folder: Path, seeds: Iterable[int], *, ends_at_first: bool, mutant: Mutant | None = None
) -> MutantVerdict:
    """Run seeds in a process of its own on the code in a folder; those fail that complain of what is said."""
    ran = subprocess.run(
        [sys.executable, "-P", str(folder / "tests/simulation/mutants.py"), "--run", json.dumps(list(seeds))]
        + (["--says", mutant.says] if mutant is not None else [])
        + (["--variant", mutant.variant] if mutant is not None and mutant.variant is not None else [])
        + ([] if ends_at_first else ["--all"]),
        # Neither the folder that it is started in nor an installed project comes before the copy.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    failed = [(seed, complaint) for seed, complaint in lines if complaint]
    if ran.returncode:
        failed.append((-1, ran.stderr.strip().splitlines()[-1]))
    return MutantVerdict(len(lines), failed)


def _run(seeds: Sequence[int], variant: str | None, *, ends_at_first: bool, says: str) -> None:
    from tests.simulation.simulate import guarded

    for seed in seeds:
        complaints = [one for one in guarded((seed, variant)).complaints if re.search(says, one)]
        sys.stdout.write(json.dumps([seed, complaints[0] if complaints else ""]) + "\n")
        sys.stdout.flush()
        if complaints and ends_at_first:
            return


def judge(mutant: Mutant, seeds: Sequence[int], *, ends_at_first: bool) -> MutantVerdict:
    """Run the seeds on a copy with the fault."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copy_project(Path(name))
        mutate(Path(name), mutant)
        return run_seeds(Path(name), seeds, ends_at_first=ends_at_first, mutant=mutant)


def row_of(mutant: Mutant, verdict: MutantVerdict) -> str:
    """Return a row of the table."""
    if not verdict.failed:
        seen, by = f"**not** in {verdict.seeds}", ""
    else:
        seen = f"{len(verdict.failed)} of {verdict.seeds}"
        by = verdict.failed[0][1].replace("|", "\\|")[:110]
    seed = verdict.failed[0][0] if verdict.failed else ""
    return f"| {mutant.name} | `{mutant.file}` | {mutant.why} | {seen} | {seed} | {by} |"


def main() -> int:
    """Judge the mutants; print a table in Markdown."""
    options = _options()
    if options.run is not None:
        _run(options.run, options.variant, ends_at_first=not options.all, says=options.says)
        return 0
    chosen = [one for group in options.group for one in GROUPS[group] if not options.only or one.name in options.only]
    mutants, gone = [], []
    for mutant in chosen:
        try:
            _check_text(mutant)
            mutants.append(mutant)
        except TextGoneError as error:
            gone.append(mutant)
            sys.stderr.write(f"{error}\n")
    seeds = matching_seeds(options.first_seed, options.matching, options.seeds, is_small=options.small)
    without = run_seeds(ROOT, seeds, ends_at_first=False) if options.check_without else MutantVerdict(0, [])
    bad = {seed for seed, _ in without.failed}
    if bad:
        sys.stderr.write(f"without a mutant these seeds fail, and are left out: {sorted(bad)}\n")
    good = [seed for seed in seeds if seed not in bad]
    found = 0
    sys.stdout.write(
        "| mutant | file | fault | found by seeds | the first | what it says |\n|---|---|---|---|---|---|\n"
    )
    for mutant in mutants:
        begin_s = time.monotonic()
        verdict = judge(mutant, good, ends_at_first=not options.all)
        found += bool(verdict.failed)
        sys.stdout.write(row_of(mutant, verdict) + "\n")
        sys.stdout.flush()
        sys.stderr.write(f"{mutant.name}: {time.monotonic() - begin_s:.0f} s\n")
    sys.stdout.write(f"\n{found} of {len(mutants)} found.\n")
    return 2 if gone else 0


def matching_seeds(first_seed: int, pattern: str, count: int, *, is_small: bool = False) -> list[int]:
    """Return the first seeds whose description matches."""
    return list(islice(_matching(first_seed, pattern, is_small=is_small), count))


def _matching(first_seed: int, pattern: str, *, is_small: bool) -> Iterator[int]:
    """Yield seeds whose description matches, without those of thousands of entries where only small ones count."""
    for seed in count(first_seed):
        variant = variant_of(seed)
        if re.search(pattern, variant.description) and not (is_small and variant.is_bulky):
            yield seed


def _check_text(mutant: Mutant) -> None:
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        for file in {edit.file for edit in mutant.edits}:
            if (ROOT / file).exists():
                (Path(name) / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, Path(name) / file)
        mutate(Path(name), mutant)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", nargs="*", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds a mutant has to survive (default 300)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--matching", default="", help="only seeds of which `Variant.description` matches this")
    parser.add_argument("--small", action="store_true", help="leave out seeds with thousands of entries")
    parser.add_argument("--only", nargs="*", help="names of mutants")
    parser.add_argument("--all", action="store_true", help="run all seeds of each mutant, and count")
    parser.add_argument("--check-without", action="store_true", help="leave out seeds that fail without a mutant")
    parser.add_argument("--says", default="", help=argparse.SUPPRESS)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--run", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
