"""The programs of a page of the documentation, written into a folder and run as they stand, with ports of a test."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from postdate.demo.process import wait_until
from tests.helpers.pages import ROOT


def write_programs(page: str, folder: Path, addresses: Mapping[str, str]) -> None:
    """Write each block of Python whose first line is `# NAME.py` into a file of this name.

    Args:
        page: The page, below `docs`.
        folder: Where to.
        addresses: What stands in place of addresses of the page.
    """
    for name, program in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL):
        for shown, real in addresses.items():
            program = program.replace(shown, real)
        (folder / name).write_text(program)


def run_program(folder: Path, name: str) -> str:
    """Run a program that ends; return what it prints."""
    ran = subprocess.run(
        [sys.executable, name], cwd=folder, env=_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


class Worker:
    """A program that runs until it is ended.

    Args:
        process: The process.
        output: The file of what it prints.
    """

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def printed(self) -> list[str]:
        """The lines that it has printed."""
        return self._output.read_text().splitlines()

    def wait_for(self, text: str) -> list[str]:
        """Wait until it has printed a text; return its lines."""

        def has_printed() -> bool:
            assert self.process.poll() is None, self._output.read_text()
            return text in self._output.read_text()

        wait_until(has_printed, timeout_s=60)
        return self.printed


@contextmanager
def working(folder: Path, *words: str) -> Iterator[Worker]:
    """Run a program, by the words behind `python`, until the body ends."""
    output = folder / f"{words[-1]}.out"
    with output.open("wb") as file:
        process = subprocess.Popen([sys.executable, *words], cwd=folder, env=_environment(), stdout=file, stderr=file)
        try:
            yield Worker(process, output)
        finally:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONUNBUFFERED": "1"}
