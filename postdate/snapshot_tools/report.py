"""The screen output of `postdate snapshots` and `check`, for 80 columns or more: tables, a histogram and figures."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from managed_ledger.names import subscription_of
from postdate.command_line.output import counted, iso, plain_table, size
from postdate.index.checking import IndexVerdict
from postdate.index.comparing import IndexFinding
from postdate.index.index_copy import Copied
from postdate.index.opening import Filter, Summary
from postdate.snapshot_tools.drop import GivenUp, Unused
from postdate.snapshot_tools.export import Exported
from snapshot_storage.bucket_key import parse_bucket_key
from snapshot_storage.inspection import SnapshotProblem, TimeHistogram
from snapshot_storage.storage import BucketSnapshotInfo

SEGMENTS_SHOWN_MAX: Final = 20
PROBLEMS_SHOWN_MAX: Final = 50
_BAR_COLUMNS_MAX: Final = 50
_BAR_LABEL_COLUMNS: Final = 2 + 20 + 2 + 2 + 11
"""The width of the text beside a bar: the time and the count."""


def id_shown(bucket_id: int | None) -> str:
    """Write an id that may be unknown."""
    return "some" if bucket_id is None else str(bucket_id)


def ledgers_of(info: BucketSnapshotInfo) -> str:
    """Write the range of ledgers of a snapshot."""
    ledgers = parse_bucket_key(info.bucket_key)
    return info.bucket_key if ledgers is None else f"{ledgers.first_ledger_id} to {ledgers.last_ledger_id}"


def print_list(console: Console, summaries: Sequence[Summary]) -> None:
    """Print a table for each cursor, and totals."""
    if not summaries:
        console.print("No snapshots.")
        return
    groups = [list(group) for _, group in groupby(summaries, lambda one: (one.info.topic_name, one.info.cursor_name))]
    tables = [_list_table(group, is_wide=True) for group in groups]
    unbounded = console.options.update(max_width=1_000)
    if any(Measurement.get(console, unbounded, table).maximum > console.width for table in tables):
        tables = [_list_table(group, is_wide=False) for group in groups]
    for group, table in zip(groups, tables, strict=True):
        console.print(_heading(group[0].info.topic_name, group[0].info.cursor_name), soft_wrap=True)
        console.print(table)
    rows, segments = sum(one.row_count for one in summaries), sum(one.info.segment_count for one in summaries)
    length_bytes = sum(one.info.length_bytes for one in summaries)
    total = (counted(len(summaries), "snapshot"), counted(segments, "segment"), counted(rows, "row"))
    console.print(f"{', '.join(total)}, {size(length_bytes)}")


def _list_table(summaries: Sequence[Summary], *, is_wide: bool) -> Table:
    """Make a table of snapshots; a narrow one takes two lines for each."""
    columns = [("id", "right"), ("ledgers", "left"), ("segments", "right"), ("rows", "right"), ("bytes", "right"),
               ("first due", "left"), ("last due", "left")]  # fmt: skip
    if not is_wide:
        columns = [("id", "right"), ("ledgers", "right"), ("rows,\nsegments", "right"), ("bytes", "right"),
                   ("due from,\nto", "left")]  # fmt: skip
    table = plain_table(*columns)
    for one in summaries:
        info, times = one.info, one.times_ms
        bucket_id, ledgers, length = str(info.bucket_id), escape(ledgers_of(info)), size(info.length_bytes)
        rows, segments = "[red]unreadable[/]" if one.problem else f"{one.row_count:,}", f"{info.segment_count:,}"
        first, last = ("", "") if times is None else (_seconds(times[0]), _seconds(times[1]))
        if is_wide:
            table.add_row(bucket_id, ledgers, segments, rows, length, first, last)
        else:
            above_each_other = (ledgers.replace(" to ", " to\n"), f"{rows}\n{segments}", length, f"{first}\n{last}")
            table.add_row(bucket_id, *above_each_other)
    return table


def _seconds(time_ms: int) -> str:
    """Write a time in the short form of tables."""
    text = iso(time_ms)
    return f"{text[:19]}Z" if text.endswith("Z") else text


def print_snapshot(console: Console, summary: Summary, named_by: Sequence[str], metadata_bytes: int) -> None:
    """Print the facts about one snapshot."""
    info, times = summary.info, summary.times_ms
    facts = {
        "topic": info.topic_name,
        "cursor": subscription_of(info.cursor_name),
        "property": info.bucket_key,
        "ledgers": ledgers_of(info),
        "named by": ", ".join(named_by) or "no cursor: an orphan, which `postdate snapshots drop` deletes",
        "rows": f"{summary.row_count:,} in {counted(info.segment_count, 'segment')}",
        "bytes": f"{size(info.length_bytes)} ({info.length_bytes:,}), of which entry 0 has {size(metadata_bytes)}",
    }
    if times is not None:
        facts["first due"] = f"{iso(times[0])}  {times[0]} ms"
        facts["last due"] = f"{iso(times[1])}  {times[1]} ms"
    console.print(f"[bold]Snapshot {info.bucket_id}[/]")
    for name, value in facts.items():
        console.print(f"  {name:<10} {value}", soft_wrap=True, markup=False)


def print_segments(console: Console, summary: Summary, sizes_bytes: Mapping[int, int], *, is_all: bool) -> None:
    """Print a table of the segments, the first and the last ones where there are many."""
    table = plain_table(
        ("segment", "right"), ("rows", "right"), ("bytes", "right"), ("ledgers", "right"), ("first due", "left"),
        ("lasts ms", "right"),
    )  # fmt: skip
    numbers = list(range(1, len(summary.segments) + 1))
    left_out = 0 if is_all else max(0, len(numbers) - SEGMENTS_SHOWN_MAX)
    shown = numbers[: SEGMENTS_SHOWN_MAX // 2] + numbers[SEGMENTS_SHOWN_MAX // 2 + left_out :] if left_out else numbers
    for place, number in enumerate(shown):
        if left_out and place == SEGMENTS_SHOWN_MAX // 2:
            table.add_row("...", "", "", "", f"{left_out:,} more: --all", "")
        segment = summary.segments[number - 1]
        begins_at, ends_at = segment.deliver_at_ms_min, segment.deliver_at_ms_max
        table.add_row(
            f"{number:,}",
            f"{segment.row_count:,}",
            size(sizes_bytes[number]) if number in sizes_bytes else "[red]unreadable[/]",
            f"{len(segment.bitmaps):,}",
            iso(begins_at),
            f"{ends_at - begins_at:,}",
        )
    console.print(table)


def print_histogram(console: Console, histogram: TimeHistogram) -> None:
    """Print the number of messages per span of time, as bars."""
    most = max(1, int(histogram.counts.max()))
    columns = max(10, min(_BAR_COLUMNS_MAX, console.width - _BAR_LABEL_COLUMNS))
    console.print(f"[bold]Due[/], from, in spans of {timedelta(milliseconds=histogram.span_ms)}")
    for number, count in enumerate(histogram.counts.tolist()):
        begins_at = histogram.first_ms + number * histogram.span_ms
        # A count above zero shows at least a short bar.
        bar = "█" * -(-count * columns // most)
        console.print(f"  {_seconds(begins_at)}  {bar:<{columns}}  {count:>11,}")


def print_verdict(console: Console, verdict: IndexVerdict, data: str) -> None:
    """Print the result of a check of the index, with tables of the faults.

    Args:
        console: The console.
        verdict: The result.
        data: The data folder, for the commands that mend.
    """
    looked_at = (
        counted(verdict.snapshots, "snapshot"),
        counted(verdict.segments, "segment"),
        counted(verdict.rows, "row"),
        f"{verdict.properties:,} cursor " + ("property" if verdict.properties == 1 else "properties"),
    )
    console.print(
        f"Index: checked {', '.join(looked_at)}; compared with {counted(verdict.log_rows, 'delayed message')}.",
        soft_wrap=True,
    )
    if not verdict.properties:
        console.print(
            "No cursor property was there to compare with: a snapshot that the storage has lost without a trace is not "
            "missed here.",
            soft_wrap=True,
        )
    if verdict.is_whole:
        console.print("[green]Nothing is wrong.[/]")
        return
    _print_problems(console, verdict.problems)
    for name in sorted(verdict.torn):
        console.print(_heading(*name), soft_wrap=True)
        table = plain_table(("messages", "right"), ("what", "left"))
        for finding, count in verdict.counts[name].items():
            if count:
                table.add_row(f"{count:,}", _FINDINGS[finding])
        console.print(table)
    faults = len(verdict.problems) + len(verdict.torn)
    console.print(f"[bold red]{counted(faults, 'problem')}.[/] {_advice(verdict, data)}", soft_wrap=True)


_FINDINGS: Final = {
    IndexFinding.MISSING: "missing: to come, and in no snapshot that can be read",
    IndexFinding.STRAY: "stray: in a snapshot, and not to be delivered",
    IndexFinding.DUPLICATE: "duplicate: in snapshots more than once",
    IndexFinding.MISTIMED: "mistimed: in a snapshot with another time than in the log",
    IndexFinding.ACKNOWLEDGED: "acknowledged since, which is no fault",
    IndexFinding.UNSEALED: "unsealed: in no snapshot yet, which is no fault",
}


def _print_problems(console: Console, problems: Sequence[SnapshotProblem]) -> None:
    shown = sorted(problems[:PROBLEMS_SHOWN_MAX], key=lambda one: (one.topic_name, one.cursor_name))
    for (topic, cursor), group in groupby(shown, lambda one: (one.topic_name, one.cursor_name)):
        console.print(_heading(topic, cursor) if topic else "[bold]unknown[/]", soft_wrap=True)
        table = plain_table(("problem", "left"), ("id", "right"))
        table.add_column("what", overflow="fold")
        for one in group:
            bucket_id = "" if one.bucket_id is None else str(one.bucket_id)
            table.add_row(f"[red]{one.kind}[/]", bucket_id, escape(one.what))
        console.print(table)
    if len(problems) > PROBLEMS_SHOWN_MAX:
        console.print(f"and {len(problems) - PROBLEMS_SHOWN_MAX:,} more")


def _advice(verdict: IndexVerdict, data: str) -> str:
    kinds = {problem.kind.value for problem in verdict.problems}
    parts = []
    if kinds & {"damaged", "inconsistent", "missing", "alien"}:
        parts.append("The log has every message: the service reads what it cannot use here from there again.")
    if verdict.torn or kinds & {"inconsistent", "alien", "malformed"}:
        parts.append(f"`postdate pipeline rebuild {escape(data)}` makes the index anew from the log.")
    if "orphaned" in kinds:
        parts.append("Orphans take space and nothing else; `postdate snapshots drop` deletes them.")
    if "unavailable" in kinds:
        parts.append("An unavailable one may be in an outage: look again, or `postdate snapshots drop ID` gives it up.")
    return " ".join(parts)


def print_unused(console: Console, unused: Unused, *, is_dry_run: bool) -> None:
    """Print what is to be deleted, or would be."""
    if unused.is_beside_service:
        console.print("A service is running, and deletes by itself the snapshots that no cursor names.")
    elif not unused.seen:
        console.print(f"There are no snapshots{_whose(unused.which)}.", soft_wrap=True)
    elif not unused.infos and not unused.unreadable:
        console.print("Every snapshot is named by a cursor.")
    for group in _by_cursor(console, unused.infos):
        table = plain_table(("id", "right"), ("ledgers", "left"), ("bytes", "right"))
        for info in group:
            table.add_row(str(info.bucket_id), escape(ledgers_of(info)), size(info.length_bytes))
        console.print(table)
    for bucket_id, what in unused.unreadable.items():
        console.print(f"[red]Unreadable:[/] {id_shown(bucket_id)}: {escape(what)}", soft_wrap=True)
    if unused.folders:
        table = plain_table(("bytes", "right"), ("damaged folder that was put aside", "left"))
        for folder in unused.folders:
            table.add_row(size(folder.size_bytes), escape(str(folder.path)))
        console.print(table)
    if not unused.count:
        console.print("Nothing to delete.")
    elif is_dry_run:
        console.print(f"Would delete {unused_counts(unused)}.")


def unused_counts(unused: Unused) -> str:
    """Write how much there is to delete."""
    parts = []
    if snapshots := len(unused.infos) + len(unused.unreadable):
        length = size(sum(info.length_bytes for info in unused.infos))
        parts.append(f"{counted(snapshots, 'snapshot')} that no cursor names, {length}")
    if unused.folders:
        length = size(sum(folder.size_bytes for folder in unused.folders))
        parts.append(f"{counted(len(unused.folders), 'folder')} that {_was(len(unused.folders))} put aside, {length}")
    return "; ".join(parts)


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def print_given_up(console: Console, given_up: Sequence[GivenUp], *, is_dry_run: bool) -> None:
    """Print what became of snapshots that were given up."""
    for one in given_up:
        cursors = counted(one.cursors_updated, "cursor")
        if is_dry_run:
            text = f"would be given up; {cursors} would no longer name it."
        elif one.is_beside_service:
            text = "deleted: the service finds out at its next try, and reads the messages from the log."
        elif one.cursors_updated:
            text = "no cursor names it any more: the next start of the service reads its messages from the log."
        else:
            text = "no cursor named it."
        console.print(f"{one.bucket_id}: {text}", soft_wrap=True)
        if one.left is not None:
            console.print(
                f"Its remains stay in the storage, as they cannot be deleted: {one.left}", soft_wrap=True, markup=False
            )


def _whose(which: Filter) -> str:
    cursor = "" if which.cursor_name is None else f" of cursor {escape(subscription_of(which.cursor_name))}"
    return cursor + ("" if which.topic_name is None else f" of topic {escape(which.topic_name)}")


def print_exported(console: Console, exported: Exported, path: Path) -> None:
    """Print the result of an export, with the damage."""
    rest = f" and what is readable of {len(exported.failed):,} more" if exported.failed else ""
    console.print(
        f"Wrote {counted(exported.rows, 'row')} of {counted(exported.snapshots, 'snapshot')}{rest} to "
        f"{escape(str(path))}",
        soft_wrap=True,
    )
    problems = [(bucket_id, reason) for bucket_id, reasons in exported.failed.items() for reason in reasons]
    for bucket_id, reason in problems[:PROBLEMS_SHOWN_MAX]:
        console.print(f"[red]Not whole:[/] {id_shown(bucket_id)}: {escape(reason)}", soft_wrap=True)
    if len(problems) > PROBLEMS_SHOWN_MAX:
        console.print(f"and {len(problems) - PROBLEMS_SHOWN_MAX:,} more")


def print_copied(console: Console, copied: Copied, target: str) -> None:
    """Print the ids, and the result of the copy."""
    for group in _by_cursor(console, [info for info in copied.infos if info.bucket_id in copied.new_ids]):
        table = plain_table(("old id", "right"), ("new id", "right"), ("ledgers", "left"))
        for info in group:
            table.add_row(str(info.bucket_id), str(copied.new_ids[info.bucket_id]), escape(ledgers_of(info)))
        console.print(table)
    for line in _copied_lines(copied, target):
        console.print(line, soft_wrap=True)


def _copied_lines(copied: Copied, target: str) -> Iterator[str]:
    there = len(copied.new_ids) - copied.written
    yield (
        f"Copied {counted(copied.written, 'snapshot')} ({size(copied.written_bytes)}) to {escape(target)}, "
        f"each read again and compared; {there:,} had been there before."
    )
    if copied.unnamed:
        yield f"Left out {counted(copied.unnamed, 'snapshot')} that no cursor names here."
    if copied.moved_before:
        yield (
            f"The cursors name {counted(copied.moved_before, 'snapshot')} there already: an earlier run moved them. "
            "`postdate snapshots drop` deletes the snapshots that no cursor names here any more."
        )
    for unnamed_id, reason in copied.unnamed_damaged.items():
        yield f"[yellow]Left out, named by no cursor:[/] {id_shown(unnamed_id)}: {escape(reason)}"
    for bucket_id, reason in copied.failed.items():
        yield f"[red]Not copied:[/] {bucket_id}: {escape(reason)}"
    if copied.cursors_left:
        yield (
            "[bold red]The cursors were left alone[/], and nothing was deleted here: a service would miss what is not "
            "copied. Start it with the old storage, where it reads that from the log again, stop it, and copy anew."
        )
    if copied.cursors_updated:
        name = "names" if copied.cursors_updated == 1 else "name"
        yield (
            f"{counted(copied.cursors_updated, 'cursor')} now {name} the new ids. Before the service starts again, let "
            "its configuration name the new storage."
        )
    if copied.deleted:
        yield f"Deleted the {counted(copied.deleted, 'old snapshot')}."


def _by_cursor(console: Console, infos: Sequence[BucketSnapshotInfo]) -> Iterator[Iterator[BucketSnapshotInfo]]:
    """Yield the snapshots of each cursor, after printing its topic and name."""
    for (topic, cursor), group in groupby(infos, lambda info: (info.topic_name, info.cursor_name)):
        console.print(_heading(topic, cursor), soft_wrap=True)
        yield group


def _heading(topic: str, cursor: str) -> str:
    return f"[bold]{escape(topic)}[/]  cursor [bold]{escape(subscription_of(cursor))}[/]"
