"""The programs of the pages on moving in: theirs beside ours, run for real, print the same."""

from pathlib import Path

import pytest

from tests.helpers.page_programs import run_program, working, write_programs
from tests.helpers.pages import ROOT
from tests.helpers.services.services import RunningService

pytestmark = pytest.mark.slow

CHARGED = "charged order-17"
REMINDED = "anna: water the plants"


def addresses(target: RunningService, redis_url: str) -> dict[str, str]:
    return {
        "pulsar://127.0.0.1:6650": target.url,
        "http://127.0.0.1:8080": target.web_url,
        "redis://127.0.0.1:6379/0": redis_url,
    }


def test_both_programs_of_the_page_on_celery_print_what_it_says(
    target: RunningService, redis_url: str, tmp_path: Path
) -> None:
    """The one that is revoked or cancelled would have come before the third try of the other."""
    page = "moving-from-celery.md"
    write_programs(page, tmp_path, addresses(target, redis_url))
    assert f"```\n{REMINDED}\n{CHARGED}\n```" in (ROOT / "docs" / page).read_text()

    celery = ("-m", "celery", "--app", "tasks", "worker", "--pool", "solo", "--loglevel", "info")
    with working(tmp_path, *celery) as theirs, working(tmp_path, "worker.py") as ours:
        run_program(tmp_path, "publish.py")
        theirs.wait_for(" ready.")
        run_program(tmp_path, "celery_publish.py")
        assert ours.wait_for(CHARGED) == [REMINDED, CHARGED]
        printed = [line.partition("WARNING/MainProcess] ")[2] for line in theirs.wait_for(CHARGED)]

    assert [line for line in printed if line.startswith(("anna", "ben", "charged"))] == [REMINDED, CHARGED]


def test_both_programs_of_the_page_on_redis_print_what_it_says(
    target: RunningService, redis_url: str, tmp_path: Path
) -> None:
    """What is removed or cancelled would have come first."""
    write_programs("moving-from-redis.md", tmp_path, addresses(target, redis_url))
    assert f"Both print `{REMINDED}`, once" in (ROOT / "docs" / "moving-from-redis.md").read_text()

    with working(tmp_path, "redis_worker.py") as theirs, working(tmp_path, "worker.py") as ours:
        run_program(tmp_path, "redis_add.py")
        run_program(tmp_path, "add.py")

        assert theirs.wait_for(REMINDED) == [REMINDED]
        assert ours.wait_for(REMINDED) == [REMINDED]
