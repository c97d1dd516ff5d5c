"""Client tests of a folder, on a prefix of MinIO: key order, delays, policies, cursors, and kills of the service.

The tests are those of the modules that they are from. `test_client_failover.py` has those of several services.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from postdate.demo.process import PostdateProcess
from tests.helpers.services.prefix_services import prefix_settings
from tests.helpers.services.services import TEST_SETTINGS
from tests.helpers.storages.s3_servers import MinioServer
from tests.integration.broker import test_client_restart
from tests.integration.broker.test_client_cursors import (  # noqa: F401
    test_a_seek_moves_every_consumer_of_the_subscription,
    test_seeking_a_time_brings_what_was_published_since,
)
from tests.integration.broker.test_client_delays import (  # noqa: F401
    test_a_delay_outlives_its_consumer,
    test_many_due_at_one_instant_come_once_and_in_order,
    test_seeking_back_keeps_the_delay_and_delivers_once,
)
from tests.integration.broker.test_client_key_order import (  # noqa: F401
    test_a_nacked_message_stays_with_its_key,
    test_delayed_messages_stay_in_order_within_their_key,
    test_each_key_stays_in_order_while_consumers_come_and_go,
)
from tests.integration.broker.test_client_policies import (  # noqa: F401
    ask,
    test_a_topics_policies_stand_over_its_namespaces,
    test_what_is_published_while_delays_are_off_is_delivered_at_once,
)
from tests.integration.broker.test_client_restart import (  # noqa: F401
    SMALL_LEDGERS,
    own_clients,
    test_delays_are_kept_over_a_kill,
    test_subscriptions_and_seeks_are_remembered,
    test_what_had_a_receipt_is_there_after_a_kill,
)
from tests.integration.broker.test_client_subscriptions import (  # noqa: F401
    test_a_subscription_that_is_gone_starts_afresh,
    test_what_was_not_acknowledged_waits_for_the_next_consumer,
)

pytestmark = pytest.mark.s3_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    server = MinioServer(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def service(server: MinioServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostdateProcess]:
    """A service on a prefix, shared by this module."""
    folder = tmp_path_factory.mktemp("shared")
    running = PostdateProcess(folder, TEST_SETTINGS | prefix_settings(server, "shared", folder / "cache"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def own_service(server: MinioServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostdateProcess]:
    """One of this test's own, to be killed."""
    # Acknowledgements ride along with the next round, a second later at most.
    monkeypatch.setattr(test_client_restart, "ACK_GROUP_S", 1.5)
    keys = prefix_settings(server, f"own/{tmp_path.name}", tmp_path / "cache")
    running = PostdateProcess(tmp_path, TEST_SETTINGS | SMALL_LEDGERS | keys)
    running.start()
    yield running
    running.stop()
