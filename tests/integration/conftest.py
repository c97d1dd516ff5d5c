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
from tests.helpers.services.services import POSTDATE, RunningService, make_guarded, make_service

ON_PREFIX = "on_prefix"
TOLD_ON_PREFIX = frozenset(
    {
        "test_a_delay_outlives_its_consumer",
        "test_a_nacked_message_stays_with_its_key",
        "test_a_seek_moves_every_consumer_of_the_subscription",
        "test_a_subscription_that_is_gone_starts_afresh",
        "test_a_topics_policies_stand_over_its_namespaces",
        "test_delayed_messages_stay_in_order_within_their_key",
        "test_each_key_stays_in_order_while_consumers_come_and_go",
        "test_many_due_at_one_instant_come_once_and_in_order",
        "test_seeking_a_time_brings_what_was_published_since",
        "test_seeking_back_keeps_the_delay_and_delivers_once",
        "test_what_is_published_while_delays_are_off_is_delivered_at_once",
        "test_what_was_not_acknowledged_waits_for_the_next_consumer",
    }
)
"""The tests that run on a prefix of MinIO as well; `test_client_failover.py` has those with kills."""

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a real Pulsar has answered before, unless it is to be asked again; and most on a prefix."""
    items[:] = [one for one in items if not _is_on_prefix(one) or one.originalname in TOLD_ON_PREFIX]
    if not config.getoption("--ask-pulsar"):
        pulsars_answers.leave_out_answered(config, items)


def _is_on_prefix(item: pytest.Item) -> bool:
    return (
        isinstance(item, pytest.Function)
        and getattr(item, "callspec", None) is not None
        and (item.callspec.params.get("service") == ON_PREFIX)
    )


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


@pytest.fixture(scope="session", params=[*KINDS, pytest.param(ON_PREFIX, marks=pytest.mark.s3_server)])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A running service, shared by the whole session."""
    if request.param == ON_PREFIX:
        # Imported late: boto3 takes half a second.
        from tests.helpers.services.prefix_services import prefix_settings
        from tests.helpers.storages.s3_servers import MinioServer

        server = MinioServer(tmp_path_factory.mktemp("s3"))
        settings = prefix_settings(server, "shared", tmp_path_factory.mktemp("cache"))
        on_prefix = make_service(POSTDATE, tmp_path_factory.mktemp(ON_PREFIX), settings)
        on_prefix.start()
        yield on_prefix
        on_prefix.stop()
        server.stop()
        return
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
