"""Services, clients and topics for the client tests.

Every test that takes `service` (or `client`) has two cases: Postdate, and a real Pulsar, which is the judge of what the
right answer is and is asked only about what is new (`pulsars_answers.py`). One process of each kind serves a whole
session; each test has a topic of its own.
"""

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.helpers.services import foreign_clients, pulsars_answers, real_pulsar, real_tracker
from tests.helpers.services.kinds import KINDS, require_tools
from tests.helpers.services.programs.clients import Clients
from tests.helpers.services.services import RunningService, make_guarded, make_service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a real Pulsar has answered before, unless it is to be asked again."""
    if not config.getoption("--ask-pulsar"):
        pulsars_answers.leave_out_answered(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Fetch Pulsar's jars, and compile what drives its tracker and clients, before the clock of any test runs."""
    if session.config.option.collectonly:
        return
    names = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    is_real = any(item.get_closest_marker("real_pulsar") for item in session.items)
    if not is_real and not names & {"language", "real_tracker"}:
        return
    # Workers of pytest-xdist come here side by side, and build in the same folders.
    lock = Path("build") / "tests.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if "language" in names:
            foreign_clients.build_all()
        if real_pulsar.missing_tools():
            return
        if is_real:
            real_pulsar.fetch_jars()
        if "real_tracker" in names:
            real_tracker.build()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Call a case by the name of its enumeration value rather than by a number."""
    return getattr(val, "name", None) if type(val).__module__ == "_pulsar" else None


@pytest.fixture(scope="session", params=KINDS)
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A running service, shared by the whole session."""
    require_tools(request.param)
    running = make_service(request.param, tmp_path_factory.mktemp(request.param))
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session", params=KINDS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A running service that asks for tokens and grants, shared by the whole session."""
    require_tools(request.param)
    running = make_guarded(request.param, tmp_path_factory.mktemp(f"guarded-{request.param}"))
    running.start()
    yield running
    running.stop()


@pytest.fixture(params=foreign_clients.LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """A client's language; its program is built."""
    name: str = request.param
    foreign_clients.require(name)
    return name


@pytest.fixture
def is_real_pulsar(service: RunningService) -> bool:
    """Whether the judge itself is being asked."""
    return isinstance(service, real_pulsar.RealPulsar)


@pytest.fixture
def clients(service: RunningService) -> Iterator[Clients]:
    """Makes clients of the service and closes them at the end."""
    made = Clients(service.url)
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    """A topic name of this test's own."""
    return f"persistent://public/default/t-{uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """One Spark of two cores for the whole session."""
    # Imported late: the client tests need no Spark.
    from tests.helpers.spark.spark_session import spark_session

    with spark_session() as session:
        yield session
