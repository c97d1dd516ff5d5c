"""The program of the page on moving from Pulsar, against Postdate and a real Pulsar."""

import re
from pathlib import Path

import pytest

from tests.helpers.page_programs import run_program, write_programs
from tests.helpers.pages import ROOT
from tests.helpers.services.services import RunningService

pytestmark = pytest.mark.slow

PAGE = "moving-from-pulsar.md"


def test_the_program_prints_what_the_page_says(service: RunningService, tmp_path: Path) -> None:
    write_programs(PAGE, tmp_path, {"pulsar://127.0.0.1:6650": service.url})
    said = re.search(r"```\n\n```\n(.*?)```", (ROOT / "docs" / PAGE).read_text(), re.DOTALL)
    assert said is not None

    assert run_program(tmp_path, "remind.py") == said[1]
