"""A service to move to, and a Redis to come from."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from postdate.command_line.program import postdate
from tests.helpers.services.redis_server import running_redis
from tests.helpers.services.services import POSTDATE, RunningService, make_service

Ask = Callable[[str], Result]


@pytest.fixture(scope="package")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    running = make_service(POSTDATE, tmp_path_factory.mktemp("target"), {"delayedDeliveryMaxDelayInMillis": "0"})
    running.start()
    yield running
    running.stop()


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    with running_redis(tmp_path) as url:
        yield url


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/moved-{uuid4().hex}"


@pytest.fixture
def ask(target: RunningService, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Runs a command line, in which T is the topic, in a folder of the test."""
    monkeypatch.chdir(tmp_path)

    def run(words: str) -> Result:
        line = [topic if word == "T" else word for word in shlex.split(words)]
        result = CliRunner().invoke(postdate, [*line, "--url", target.web_url], env={"COLUMNS": "200"})
        assert "Traceback" not in result.output, result.output
        return result

    return run
