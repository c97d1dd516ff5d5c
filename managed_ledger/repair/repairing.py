"""Verify a log, or repair it: the steps in order, for a command or a program. Both need the log for themselves.

verify   survey ─► findings
repair   survey ─► findings ─► a new folder beside ─► it is read ─► it takes the damaged one's place ─► report
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import Family
from managed_ledger.errors import LedgerError
from managed_ledger.positions.value_types import OnStage, OnStep
from managed_ledger.reading.unread_entries import runs
from managed_ledger.repair.findings import Findings, find
from managed_ledger.repair.rewriting import check_rewritten, exchange, locked, rewrite
from managed_ledger.repair.survey import EntryFormat, Survey, survey
from managed_ledger.rocksdb_store.damaged_folder import FileFault


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """The findings about a log."""

    folder: Path
    survey: Survey
    findings: Findings

    @property
    def is_whole(self) -> bool:
        """Whether nothing at all is wrong."""
        return not self.survey.problems and not self.findings.lost_entries

    @property
    def problems(self) -> list[FileFault]:
        """The faults, by file."""
        return self.survey.problems

    def as_json(self) -> dict[str, Any]:
        """The verdict for programs, and for the report of a repair."""
        findings = self.findings
        return {
            "folder": str(self.folder),
            "files": [{"file": one.file, "what": one.what, "costs": not one.is_harmless} for one in self.problems],
            "lost": [
                {
                    "topic": one.topic,
                    "ledger": one.ledger.ledger_id,
                    "entries": [list(run) for run in runs(one.lost)],
                    "count": len(one.lost),
                    "of": one.ledger.entries,
                }
                for one in findings.ledgers
                if one.lost
            ],
            "ledgers_of_unknown_topic": [
                {"ledger": ledger_id, "count": count} for ledger_id, count in sorted(findings.unowned.items())
            ],
            "newest_changes_missing": self.survey.missing_writes,
            "subscriptions": [
                {"topic": one.topic, "subscription": one.cursor, "what": one.what} for one in findings.cursors
            ],
            "lost_entries": findings.lost_entries,
            "kept_entries": sum(one.ledger.entries - len(one.lost | one.lost_before) for one in findings.ledgers),
        }


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of a repair."""

    verdict: LogVerdict
    kept_folder: Path
    """The damaged log, as it was."""
    report: Path


def verify(folder: Path, *, entry_format: EntryFormat | None, on_stage: OnStage, on_step: OnStep) -> LogVerdict:
    """Find the damage of a log; nothing is changed.

    Raises:
        StoreLockedError: A service has it open.
        LedgerError: There is none, or it cannot be read.
        OSError: The system refuses.
    """
    with locked(folder, creates=False), _verified(folder, entry_format, on_stage, on_step) as verdict:
        return verdict


def repair(
    folder: Path, *, entry_format: EntryFormat | None, name_of_time: str, on_stage: OnStage, on_step: OnStep
) -> Repaired | LogVerdict:
    """Put the whole part of a log in its place; the damaged log stays beside it, with a report of the losses.

    Args:
        folder: The log.
        entry_format: The service's format of entries.
        name_of_time: The time as it stands in the name of the damaged log that is kept.
        on_stage: Told of each stage and its steps.
        on_step: Told of steps that are done.

    Returns:
        The result, or the verdict if there was nothing to do.

    Raises:
        StoreLockedError: A service has it open.
        LedgerError: There is none, it cannot be read, or there is no room; nothing was changed.
        OSError: The same.
    """
    with locked(folder, creates=True), _verified(folder, entry_format, on_stage, on_step) as verdict:
        if verdict.is_whole:
            return verdict
        target = folder.with_name(f"{folder.name}.repairing")
        # A repair that did not come to its end has left this.
        shutil.rmtree(target, ignore_errors=True)
        try:
            on_stage("write", len(verdict.findings.ledgers))
            rewrite(verdict.survey, verdict.findings, target, entry_format=entry_format, on_ledger=lambda: on_step(1))
            check_rewritten(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        kept = folder.with_name(f"{folder.name}.damaged-{name_of_time}")
        report = kept.with_name(kept.name + ".json")
        report.write_text(json.dumps(verdict.as_json() | {"kept_folder": str(kept)}, indent=2, ensure_ascii=False))
        exchange(folder, target, kept)
        return Repaired(verdict, kept, report)


@contextmanager
def _verified(
    folder: Path, entry_format: EntryFormat | None, on_stage: OnStage, on_step: OnStep
) -> Iterator[LogVerdict]:
    on_stage("read", len(Family))
    with survey(folder, entry_format=entry_format, on_family=lambda: on_step(1)) as found:
        if not found.problems:
            # Faults of files that are not read here, such as of another version of RocksDB.
            try:
                RocksDatabase.open_read_only(folder, pause=lambda _: None).release()
            except LedgerError as error:
                what = f"a service does not open it: {error}"
                found.problems.append(FileFault("the folder", what, is_harmless=True))
        yield LogVerdict(folder, found, find(found))
