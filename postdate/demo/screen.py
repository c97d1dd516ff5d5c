"""`postdate demo`: show the run of `postdate.demo.story` on the screen and print its verdict.

Events are printed with their times, a bar below them shows the number of delivered messages, and a table at the end has
the verdict. The exit code is 0 only without a fault. The events are in `postdate.demo.story`, the judgement in
`postdate.demo.verdict`; this module formats them, and keeps or removes the data folder.
"""

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from postdate.command_line.endings import EXIT_CODE_DONE, EXIT_CODE_INTERRUPTED, EXIT_CODE_REFUSED, EXIT_CODE_WRONG
from postdate.command_line.output import print_json
from postdate.demo.process import PostdateProcess, ProcessStartError
from postdate.demo.story import Story, StoryConfig, StoryError, StoryOutcome
from postdate.demo.verdict import FaultExamples


def run_demo(
    *,
    keep: bool = False,
    folder: Path | None = None,
    config: StoryConfig | None = None,
    console: Console | None = None,
    is_json: bool = False,
) -> int:
    """Run the demo and return the process's exit code.

    Args:
        keep: Whether data and logs stay; they always do in a given folder, and when something was wrong.
        folder: Where they go; None is a temporary folder.
        config: The numbers of the run.
        console: The console that shows it.
        is_json: Print the verdict as JSON, and show everything else on stderr.
    """
    console = console or Console(highlight=False, stderr=is_json)
    config = config or StoryConfig()
    place = folder or Path(tempfile.mkdtemp(prefix="postdate-demo-"))
    try:
        code = _run(config, place, console, is_json=is_json)
    except KeyboardInterrupt:
        console.print("Interrupted; nothing is left running.")
        code = EXIT_CODE_INTERRUPTED
    except (ProcessStartError, StoryError) as error:
        console.print(f"[red]The demo could not go on:[/] {escape(str(error))}")
        code = EXIT_CODE_REFUSED
    if keep or folder or code in (EXIT_CODE_WRONG, EXIT_CODE_REFUSED):
        console.print(f"Data and logs are in {escape(str(place))}", soft_wrap=True)
    else:
        shutil.rmtree(place, ignore_errors=True)
    return code


def _run(config: StoryConfig, place: Path, console: Console, *, is_json: bool) -> int:
    console.print(
        f"{config.messages:,} messages of {config.keys} keys, delays from {config.delay_ms_min / 1000:g} "
        f"to {config.delay_ms_max / 1000:g} s, {config.consumers} consumers, one SIGKILL\n"
    )
    begun = time.monotonic()
    progress = Progress(
        TextColumn(" "),
        BarColumn(bar_width=40),
        TaskProgressColumn("{task.completed:,.0f} of {task.total:,.0f} delivered"),
        TextColumn("[dim]{task.description}"),
        console=console,
        # The bar is removed at the end, and is never written to a file: the events are enough there.
        transient=True,
        disable=not console.is_terminal,
    )
    task = progress.add_task("", total=config.messages)
    story = Story(
        config,
        PostdateProcess(place, config.settings),
        tell=lambda event: console.print(f"[dim]{time.monotonic() - begun:6.1f} s[/]  {escape(event)}", soft_wrap=True),
        show_progress=lambda delivered, phase: progress.update(task, completed=delivered, description=phase),
    )
    with _terminable(), contextlib.closing(story), progress:
        outcome = story.run()
    if is_json:
        print_json({"isClean": outcome.is_clean, **asdict(outcome)})
    console.print(_faults_table(outcome))
    console.print(_lateness_table(outcome))
    console.print(_recovery_lines(outcome), soft_wrap=True)
    for name, finding in _faults(outcome).items():
        for example in finding.examples:
            console.print(f"[red]{name}:[/] {escape(example)}", soft_wrap=True)
    if not outcome.is_clean:
        console.print("[bold red]Not clean.[/]")
        return EXIT_CODE_WRONG
    console.print(f"[bold green]Clean[/], in {time.monotonic() - begun:.0f} s.")
    return EXIT_CODE_DONE


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """End on SIGTERM and at the end of the terminal as on Ctrl-C, so that no service is left behind."""
    # `nohup` starts a process with SIGHUP ignored.
    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, signal.default_int_handler) for one in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _faults(outcome: StoryOutcome) -> dict[str, FaultExamples]:
    return outcome.verdict.faults | {"not acknowledged at the end": FaultExamples(outcome.backlog)}


def _faults_table(outcome: StoryOutcome) -> Table:
    table = _table("verdict", "count")
    table.add_column("")
    for name, finding in _faults(outcome).items():
        table.add_row(name, f"{finding.count:,}", "[red]must be 0[/]" if finding.count else "[green]ok[/]")
    table.add_row("duplicates, not acknowledged at the kill", f"{outcome.verdict.duplicates_at_kill:,}", "allowed")
    return table


def _lateness_table(outcome: StoryOutcome) -> Table:
    table = _table("lateness in ms, of messages due", "count", "p50", "p99", "max")
    for name, lateness in (
        ("while the service was up", outcome.verdict.lateness_up),
        ("from the kill until consumers were back", outcome.verdict.lateness_outage),
    ):
        percentiles = (lateness.p50_ms, lateness.p99_ms, lateness.max_ms)
        table.add_row(name, f"{lateness.count:,}", *(_milliseconds(value) for value in percentiles))
    return table


def _milliseconds(value: float) -> str:
    """Write a time, short ones with a decimal, so that long ones fit into their column."""
    return f"{value:,.1f}" if value < 1_000 else f"{value:,.0f}"


def _table(title: str, *numbers: str) -> Table:
    """Make a table for a screen of 80 columns."""
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column(title, no_wrap=True, min_width=40)
    for name in numbers:
        table.add_column(name, no_wrap=True, justify="right")
    return table


def _recovery_lines(outcome: StoryOutcome) -> str:
    return f"""\
 {outcome.waiting_at_restart:,} messages were waiting after the kill: {outcome.from_snapshots:,} came from \
{outcome.buckets_recovered} snapshots,
 {outcome.reread:,} were read again from the log.
 SIGKILL to ready {outcome.down_ms:,.0f} ms, process start to first delivery {outcome.first_delivery_ms:,.0f} ms.
 The oldest acknowledgement that the kill undid was made \
{outcome.verdict.ack_lost_before_kill_ms_max:.0f} ms before it.
"""
