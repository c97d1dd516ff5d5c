"""The types of the scheduling client, as mypy sees them in a program of a user."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ASYNCHRONOUS = """
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

from postdate import EVERYTHING, AsyncScheduler, Matching, Outcome, ScheduledMessage


async def remind(scheduler: AsyncScheduler) -> int:
    handle: str = await scheduler.schedule(b"x", key="k", properties={"a": "b"}, at=datetime.now(timezone.utc))
    moved: Outcome = await scheduler.reschedule(handle, after=timedelta(hours=1))
    handles: Mapping[str, str] = moved.handles
    await scheduler.cancel(Matching(key="k"))
    await scheduler.deliver_now(EVERYTHING)
    found: list[ScheduledMessage] = [message async for message in scheduler.upcoming(limit=len(handles))]
    return len(found) + await scheduler.count()
"""
WRONG = [
    "scheduler.schedule('text', after=timedelta(1))",
    "scheduler.schedule(b'x', after=5)",
    "scheduler.cancel(5)",
    "scheduler.reschedule('1:0', at='tomorrow', by=5)",
    "scheduler.count().handles",
]


def errors_of(program: str, folder: Path) -> dict[int, str]:
    """The errors of mypy in strict mode for a program, by line; errors in the packages are left out."""
    file = folder / "program.py"
    file.write_text(program)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--follow-imports=silent",
        "--ignore-missing-imports",
    ]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "programs"), str(file)]
    ran = subprocess.run(command, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert "1 source file" in ran.stdout, ran.stdout + ran.stderr
    return {int(line): text for line, text in re.findall(r"program\.py:(\d+): error: (.*)", ran.stdout)}


@pytest.mark.slow
def test_the_examples_are_clean_for_mypy(tmp_path: Path) -> None:
    found = re.search(r"## From Python.*?```python\n(.*?)```", (ROOT / "docs/scheduling.md").read_text(), re.DOTALL)
    assert found is not None

    assert errors_of(found[1], tmp_path) == {}
    assert errors_of(ASYNCHRONOUS, tmp_path) == {}


@pytest.mark.slow
def test_what_cannot_be_meant_is_told_by_mypy(tmp_path: Path) -> None:
    lines = [f"    {one}" for one in WRONG]
    head = "from datetime import timedelta\nfrom postdate import Scheduler\n\ndef f(scheduler: Scheduler) -> None:\n"

    errors = errors_of(head + "\n".join(lines) + "\n", tmp_path)

    assert errors.keys() == {5, 6, 7, 8, 9}
