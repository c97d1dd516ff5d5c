"""The JSON output of `postdate snapshots`: as on a screen, with sizes in bytes and times in ISO 8601 and in ms.

Topics have their full names, subscriptions the names that users know.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from managed_ledger.names import subscription_of
from managed_ledger.positions.value_types import Json
from postdate.command_line.output import iso_or_none
from postdate.index.checking import IndexVerdict
from postdate.index.index_copy import Copied
from postdate.index.opening import Summary
from postdate.snapshot_tools.drop import Unused
from postdate.snapshot_tools.export import Exported
from snapshot_storage.bucket_key import parse_bucket_key
from snapshot_storage.storage import BucketSnapshotInfo


def info_json(info: BucketSnapshotInfo) -> Json:
    """Return the facts about a snapshot that need no read of it."""
    ledgers = parse_bucket_key(info.bucket_key)
    return {
        "topic": info.topic_name,
        "cursor": subscription_of(info.cursor_name),
        "bucket_id": info.bucket_id,
        "bucket_key": info.bucket_key,
        "first_ledger_id": None if ledgers is None else ledgers.first_ledger_id,
        "last_ledger_id": None if ledgers is None else ledgers.last_ledger_id,
        "segments": info.segment_count,
        "bytes": info.length_bytes,
    }


def summary_json(summary: Summary) -> Json:
    """Return a snapshot; unreadable fields are null."""
    first_ms, last_ms = summary.times_ms or (None, None)
    return info_json(summary.info) | {
        "rows": None if summary.problem else summary.row_count,
        **_time("first_deliver_at", first_ms),
        **_time("last_deliver_at", last_ms),
        "problem": None if summary.problem is None else str(summary.problem),
    }


def _time(name: str, time_ms: int | None) -> dict[str, str | int | None]:
    return {name: iso_or_none(time_ms), f"{name}_ms": time_ms}


def snapshot_json(
    summary: Summary, named_by: Sequence[str], sizes_bytes: Mapping[int, int], damaged: Sequence[str]
) -> Json:
    """Return one snapshot with its segments and the cursors that name it; a damaged segment has no size."""
    segments = [
        {
            "segment": number,
            "rows": segment.row_count,
            "bytes": sizes_bytes.get(number),
            "ledgers": len(segment.bitmaps),
            **_time("first_deliver_at", segment.deliver_at_ms_min),
            **_time("last_deliver_at", segment.deliver_at_ms_max),
        }
        for number, segment in enumerate(summary.segments, start=1)
    ]
    return summary_json(summary) | {"named_by": list(named_by), "damaged": list(damaged), "segment_list": segments}


def verdict_json(verdict: IndexVerdict) -> Json:
    """Return the result of a check of the index, with every problem."""
    problems = [
        {
            "kind": str(problem.kind),
            "bucket_id": problem.bucket_id,
            "topic": problem.topic_name or None,
            "cursor": subscription_of(problem.cursor_name) or None,
            "what": problem.what,
        }
        for problem in verdict.problems
    ]
    subscriptions = [
        {
            "topic": cursor.topic,
            "cursor": cursor.subscription,
            "findings": {finding.value: count for finding, count in counts.items() if count},
        }
        for cursor, counts in verdict.counts.items()
    ]
    return {
        "is_whole": verdict.is_whole,
        "snapshots": verdict.snapshots,
        "segments": verdict.segments,
        "rows": verdict.rows,
        "properties": verdict.properties,
        "log_rows": verdict.log_rows,
        "problems": problems,
        "subscriptions": subscriptions,
    }


def unused_json(unused: Unused, *, is_dry_run: bool) -> Json:
    """Return what was deleted, or would be."""
    return {
        "is_dry_run": is_dry_run,
        "snapshots_seen": unused.seen,
        "unnamed": [info_json(info) for info in unused.infos],
        "unreadable": _reasons(unused.unreadable),
        "damaged": _reasons(unused.damaged),
        "put_aside": [{"path": str(one.path), "bytes": one.size_bytes} for one in unused.folders],
    }


def copied_json(copied: Copied, target: str) -> Json:
    """Return the new ids, and the result of the copy."""
    return {
        "target": target,
        "copies": [
            info_json(info) | {"new_bucket_id": copied.new_ids[info.bucket_id]}
            for info in copied.infos
            if info.bucket_id in copied.new_ids
        ],
        "written": copied.written,
        "written_bytes": copied.written_bytes,
        "moved_before": copied.moved_before,
        "unnamed": copied.unnamed,
        "unnamed_damaged": _reasons(copied.unnamed_damaged),
        "failed": _reasons(copied.failed),
        "cursors_updated": copied.cursors_updated,
        "cursors_left": copied.cursors_left,
        "deleted": copied.deleted,
    }


def checkpoint_json(path: Path, infos: Sequence[BucketSnapshotInfo]) -> Json:
    """Return the content of a backup."""
    return {"path": str(path), "snapshots": len(infos), "bytes": sum(info.length_bytes for info in infos)}


def exported_json(exported: Exported, path: Path) -> Json:
    """Return the result of an export, with the damage."""
    failed = [
        {"bucket_id": bucket_id, "reason": reason}
        for bucket_id, reasons in exported.failed.items()
        for reason in reasons
    ]
    return {"path": str(path), "rows": exported.rows, "snapshots": exported.snapshots, "failed": failed}


def _reasons(reasons: Mapping[int, str] | Mapping[int | None, str]) -> list[Json]:
    return [{"bucket_id": bucket_id, "reason": reason} for bucket_id, reason in reasons.items()]
