"""Faults put into dispatcher and tracker by hand, and in how many seeds the simulation finds each.

    python tests/simulation/mutants.py [--seeds 200] [--only shared-takes-what-returns]

Each mutant is one replacement in one file of a copy of the project. It is found when a seed fails that passes without
it. `docs/simulation.md` has the last table. A mutant whose old text is gone is reported: choose its equal in the new
code.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PARTS: Final = (
    "broker",
    "dispatcher",
    "managed_ledger",
    "snapshot_storage",
    "tracker",
    "tests/simulation",
    "tests/helpers/fakes",
)


class Mutant(NamedTuple):
    """One replacement."""

    name: str
    file: str
    old: str
    new: str
    why: str


MUTANTS: Final = [
    Mutant(
        "shared-takes-what-returns",
        "dispatcher/core/shared.py",
        "and self.waiting.may_give(_ONLY_SLOT):\n            items",
        "and len(self.waiting):\n            items",
        "entries on their way back are counted as if they could be given",
    ),
    Mutant(
        "subscription-count-not-lowered",
        "dispatcher/core/multiple_consumers.py",
        "        self.unacked -= messages\n        if consumer.heads:",
        "        if consumer.heads:",
        "a count not lowered: what the subscription holds",
    ),
    Mutant(
        "unblocked-and-nobody-served",
        "dispatcher/core/multiple_consumers.py",
        "            self._to_serve.update(self.consumers)",
        "            pass",
        "a missing wake-up when the subscription's limit is no longer met",
    ),
    Mutant(
        "returning-without-timer",
        "dispatcher/core/multiple_consumers.py",
        "has_work = self._to_serve or self.waiting.returning or self._expired",
        "has_work = self._to_serve or self._expired",
        "a missing wake-up for the second portion of what a consumer gave back",
    ),
    Mutant(
        "new-head-not-offered-after-expiry",
        "dispatcher/core/multiple_consumers.py",
        "        self._offer_all(self.waiting.discard_through(through))",
        "        self.waiting.discard_through(through)",
        "the head behind an expired one is not offered",
    ),
    Mutant(
        "expired-portion-off-by-one",
        "dispatcher/core/multiple_consumers.py",
        "            if len(portion) < self.expired_entries_max:",
        "            if len(portion) <= self.expired_entries_max:",
        "off by one: only the first portion of what expired is forgotten",
    ),
    Mutant(
        "expired-is-sent",
        "dispatcher/core/multiple_consumers.py",
        "return position in consumer.pending.items and position > self._mark_deleted_through",
        "return position in consumer.pending.items",
        "what has expired is sent while consumers forget it in portions",
    ),
    Mutant(
        "refund-forgotten",
        "dispatcher/core/subscription_core.py",
        "        consumer.permits += messages\n        consumer.messages_out -= messages",
        "        consumer.messages_out -= messages",
        "permits of what was not sent do not come back",
    ),
    Mutant(
        "refused-not-refunded",
        "dispatcher/dispatcher.py",
        "            core.refund(consumer, items)\n            # The permits",
        "            # The permits",
        "charged and not sent: an acknowledged entry in the outbox keeps its permit",
    ),
    Mutant(
        "held-and-acknowledged",
        "dispatcher/core/intake.py",
        "        return self._not_acknowledged(held)\n\n    def _is_holding_due",
        "        return held\n\n    def _is_holding_due",
        "what is held is let in without asking what is acknowledged",
    ),
    Mutant(
        "due-and-acknowledged",
        "dispatcher/core/intake.py",
        "        headers = self._not_acknowledged(headers)\n        if not self.held_due or not len(headers):",
        "        if not self.held_due or not len(headers):",
        "what the tracker gives is let in without asking what was acknowledged while its headers were read",
    ),
    Mutant(
        "hold-without-timer",
        "dispatcher/core/intake.py",
        "        return hold_until_ms if hold_until_ms is not None and self.now_ms < hold_until_ms else None",
        "        return None",
        "a missing wake-up when due entries have waited long enough for the order of time",
    ),
    Mutant(
        "moved-slots-not-offered",
        "dispatcher/core/key_shared.py",
        "        self._offer_all(_those_that(has_moved, self.waiting.heaps))",
        "        pass",
        "what waits in slots that moved is not offered to the new owner",
    ),
    Mutant(
        "unblocking-without-timer",
        "dispatcher/core/key_shared.py",
        "for at in (super().next_wakeup_ms(), self._unblock_at_ms) if at is not None]",
        "for at in (super().next_wakeup_ms(),) if at is not None]",
        "a missing wake-up for slots that have drained",
    ),
    Mutant(
        "batch-charged-as-one",
        "dispatcher/core/key_shared.py",
        "            budgets[owner] -= item[COUNT]",
        "            budgets[owner] -= 1",
        "a batch is weighed as one message when permits are looked at",
    ),
    Mutant(
        "given-while-returning",
        "dispatcher/core/key_shared.py",
        " or slot in returning:\n                # What is skipped",
        ":\n                # What is skipped",
        "a slot is served while the rest of its entries are on their way back",
    ),
    Mutant(
        "drains-for-one",
        "dispatcher/core/draining_hashes.py",
        '        self._columns["references"][row] -= count\n',
        '        self._columns["references"][row] -= 1\n',
        "off by some: a draining slot counts one reference less for several entries",
    ),
    Mutant(
        "drains-although-back",
        "dispatcher/core/draining_hashes.py",
        "            if self.slots and is_own.any():",
        "            if False:",
        "a slot that moved back to its holder drains for ever",
    ),
    Mutant(
        "moved-and-not-drained",
        "dispatcher/core/draining_hashes.py",
        "            self.add_entries(consumer.index, held[is_new]",
        "            self.add_entries(consumer.index, held[is_new][1:]",
        "the first of the slots that moved does not drain",
    ),
    Mutant(
        "newcomer-gets-the-bound",
        "dispatcher/core/recently_joined.py",
        "return (item[LEDGER], item[ENTRY]) >= bound",
        "return (item[LEDGER], item[ENTRY]) > bound",
        "off by one: a newcomer is given the entry at its bound",
    ),
    Mutant(
        "parked-behind-a-discarded-head",
        "dispatcher/core/waiting.py",
        "        self._bury(heap)\n        self._refill(slot)\n        return slot if heap",
        "        self._bury(heap)\n        return slot if heap",
        "what is parked behind an acknowledged head is not brought to the front",
    ),
    Mutant(
        "parked-behind-a-given-head",
        "dispatcher/core/waiting.py",
        "        if slot in self.parked.first:\n            self._refill(slot)\n        elif not heap:",
        "        if not heap:",
        "what is parked behind a given head is not brought to the front",
    ),
    Mutant(
        "dropped-and-sent",
        "dispatcher/outbox.py",
        "        if drops != self._drops:\n            return\n",
        "",
        "what was dropped while its payload was read is sent",
    ),
    Mutant(
        "passed-and-counted",
        "dispatcher/dispatcher.py",
        "            self._reader.forget_delayed_through(through)\n",
        "",
        "a count not lowered: delayed messages that expired",
    ),
    Mutant(
        "dry-for-ever",
        "dispatcher/reader.py",
        "        self._is_tracker_dry = False\n        if self._core.plan is not None:\n            self._core.plan.note_recovered",
        "        if self._core.plan is not None:\n            self._core.plan.note_recovered",
        "a tracker that had nothing once is not asked again",
    ),
    Mutant(
        "popped-before-a-seek",
        "dispatcher/reader.py",
        '        """Drop what is on its way: the core was reset, and finds it again by reading."""\n        self._popped = None\n',
        '        """Drop what is on its way: the core was reset, and finds it again by reading."""\n',
        "what left the tracker before a seek is let in after it",
    ),
    Mutant(
        "taken-early-and-read",
        "dispatcher/core/read_plan.py",
        "            self._taken_early.setdefault(ledger_id, BitMap()).update(taken.astype(np.uint32))",
        "            pass",
        "what left the tracker before the scan came by is read again",
    ),
    Mutant(
        "no-room-and-passed",
        "dispatcher/core/read_plan.py",
        "            self.next_immediate = first_not_taken",
        "            self.next_immediate = next_position",
        "immediate entries for which there was no room are lost",
    ),
    Mutant(
        "active-one-too-many",
        "dispatcher/core/single_active.py",
        'permits, side="left"',
        'permits, side="right"',
        "off by one: an active consumer is sent one entry more than it asked for",
    ),
    Mutant(
        "told-once",
        "tracker/shell/wake_up.py",
        "        self._told_due_ms = due_ms\n        self._withheld_ms = withheld_ms",
        "        self._told_due_ms = self._told_due_ms or due_ms\n        self._withheld_ms = withheld_ms",
        "a dispatcher that was told of a message that left another way is told of no other",
    ),
    Mutant(
        "timer-without-turn",
        "tracker/shell/bucket_tracker.py",
        "        self._timer = None\n        self._timer_at_ms = None\n        self._turn_soon()",
        "        self._timer = None\n        self._timer_at_ms = None",
        "a missing wake-up: the tracker's timer does nothing",
    ),
    Mutant(
        "memory-timer-late",
        "tracker/in_memory.py",
        "        if self._timer_at_ms is None or self._times[0] < self._timer_at_ms:\n            self._turn_soon()",
        "        if self._timer_at_ms is None:\n            self._turn_soon()",
        "in memory: the timer is not set forward for an earlier message",
    ),
    Mutant(
        "settle-skipped",
        "tracker/core/index.py",
        "                    self._settle(rows.ledger_ids, rows.entry_ids)",
        "                    pass",
        "a skipped settle: what was handed out comes again from an overlapping bucket",
    ),
    Mutant(
        "unsettle-skipped",
        "tracker/core/bucket_set.py",
        "            self.index.unsettle(rows.members)",
        "            pass",
        "a position that was added again after it was handed out does not come from its snapshot",
    ),
    Mutant(
        "merge-without-doubt",
        "tracker/core/bucket_plan.py",
        "    buckets.doubts.mark(target)",
        "    pass",
        "what is handed out while a merge is under way comes again from the merged bucket",
    ),
    Mutant(
        "property-stays",
        "tracker/core/bucket_events.py",
        "BucketState.UNREGISTERING if bucket.has_property else BucketState.GONE)\n\n\ndef _on_listed",
        "BucketState.GONE)\n\n\ndef _on_listed",
        "the property of a deleted snapshot stays",
    ),
    Mutant(
        "failed-create-not-swept",
        "tracker/core/bucket_events.py",
        "        # It may have been stored all the same, under an id that nobody knows.\n        buckets.is_sweep_wanted = True",
        "        pass",
        "a snapshot whose creation failed after its effect stays without an owner",
    ),
    Mutant(
        "lost-and-not-read-again",
        "tracker/core/bucket_events.py",
        "            buckets.untracked[ledger_id] = lost | buckets.untracked.get(ledger_id, BitMap())",
        "            pass",
        "positions of a lost snapshot are not read from the log again",
    ),
    Mutant(
        "no-room-for-the-first",
        "tracker/core/bucket_plan.py",
        "            if room <= 0 and not is_waited_for:",
        "            if room <= 0:",
        "the segment that holds up hand-out is not loaded when no row more may be loaded",
    ),
    Mutant(
        "past-what-is-not-loaded",
        "tracker/core/tracker_core.py",
        "        through = min(last_key_at(self._buckets.due_through_ms(now_ms)), self._buckets.barrier(now_ms))\n        rows",
        "        through = last_key_at(self._buckets.due_through_ms(now_ms))\n        rows",
        "messages are handed out past a segment that is not loaded",
    ),
    Mutant(
        "refused-and-tracked",
        "tracker/core/tracker_core.py",
        "        if self._index.refuse(ledger_id, entry_ids):\n            # Another message may be the first now.\n"
        "            self._buckets.is_dirty = True",
        "        pass",
        "a message that is delivered as it is due stays tracked",
    ),
    Mutant(
        "others-not-told",
        "tracker/shared/shared_index.py",
        "                if view is not poller:\n                    view.tell_soon()",
        "                pass",
        "shared index: what one subscription polled, the others are not told of",
    ),
    Mutant(
        "others-acknowledged-it",
        "tracker/shared/shared_view.py",
        "        self._rows.receive(self._without_acknowledged(rows))",
        "        self._rows.receive(rows)",
        "shared index: a view keeps what its subscription has acknowledged",
    ),
]


class Verdict(NamedTuple):
    """Whether a mutant was found."""

    mutant: Mutant
    seeds: int
    """How many were run, the one that failed included."""
    seed: int | None
    complaint: str


def mutated(text: str, mutant: Mutant) -> str:
    """Return a file's text with the fault in it."""
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} has its old text {text.count(mutant.old)} times, not once")
    return text.replace(mutant.old, mutant.new)


def copy_project(folder: Path, mutant: Mutant | None) -> None:
    """Copy what a simulation needs, with a fault in it."""
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        path = folder / mutant.file
        path.write_text(mutated(path.read_text(), mutant))


def run_seeds(folder: Path, seeds: Iterable[int], *, ends_at_first: bool) -> list[tuple[int, str]]:
    """Run seeds in a process on a folder's code; return those that failed, with their first complaint."""
    ran = subprocess.run(
        [sys.executable, str(folder / "tests/simulation/mutants.py"), "--run", json.dumps(list(seeds))]
        + (["--first"] if ends_at_first else []),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    if ran.returncode:
        failed.append((-1, ran.stderr.strip().splitlines()[-1]))
    return [(seed, complaint) for seed, complaint in failed]


def _run(seeds: Sequence[int], *, ends_at_first: bool) -> None:
    from tests.simulation.simulate import guarded

    for seed in seeds:
        complaints = guarded((seed, None)).complaints
        if complaints:
            sys.stdout.write(json.dumps([seed, complaints[0]]) + "\n")
            if ends_at_first:
                return


def judge(mutant: Mutant, seeds: Sequence[int]) -> Verdict:
    """Run the seeds on a copy with the fault until one fails."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copy_project(Path(name), mutant)
        failed = run_seeds(Path(name), seeds, ends_at_first=True)
    if not failed:
        return Verdict(mutant, len(seeds), None, "")
    seed, complaint = failed[0]
    return Verdict(mutant, seeds.index(seed) + 1 if seed in seeds else 0, seed, complaint)


def main() -> int:
    """Judge all mutants; print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds a mutant has to survive (default 200)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="*", help="names of mutants")
    parser.add_argument("--run", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        _run(options.run, ends_at_first=options.first)
        return 0
    mutants = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    for mutant in mutants:
        mutated((ROOT / mutant.file).read_text(), mutant)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with ThreadPoolExecutor(options.jobs) as pool:
        chunks = [list(seeds[start :: options.jobs]) for start in range(options.jobs)]
        bad = {
            seed
            for failed in pool.map(lambda chunk: run_seeds(ROOT, chunk, ends_at_first=False), chunks)
            for seed, _ in failed
        }
        sys.stderr.write(f"{len(bad)} of {len(seeds)} seeds fail without a mutant and are left out: {sorted(bad)}\n")
        good = [seed for seed in seeds if seed not in bad]
        found = 0
        sys.stdout.write("| mutant | file | fault | found | by |\n|---|---|---|---|---|\n")
        for verdict in pool.map(lambda mutant: judge(mutant, good), mutants):
            found += verdict.seed is not None
            by = verdict.complaint.replace("|", "\\|")[:120]
            seen = f"in seed {verdict.seeds}" if verdict.seed is not None else f"**not** in {verdict.seeds} seeds"
            name, file, *_ = verdict.mutant
            sys.stdout.write(f"| {name} | `{file}` | {verdict.mutant.why} | {seen} | {by} |\n")
            sys.stdout.flush()
    sys.stdout.write(f"\n{found} of {len(mutants)} found.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
