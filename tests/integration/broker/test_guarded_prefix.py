"""Services of a prefix that ask for tokens: what one knows of a caller counts at the others."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pulsar
import pytest

from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services.prefix_services import prefix_settings, topic_by_bundle
from tests.helpers.services.quiet_client import QUIET
from tests.helpers.services.services import ADMIN, GUARDED_SETTINGS
from tests.helpers.storages.s3_servers import VersityServer
from tests.helpers.tokens import token

TOPICS = topic_by_bundle()
TIMEOUT_S = 60.0


@pytest.fixture
def services(tmp_path: Path) -> Iterator[list[PostdateProcess]]:
    server = VersityServer(tmp_path / "s3")
    made = []
    for name in "ab":
        settings = prefix_settings(server, "guarded", tmp_path / name / "cache") | GUARDED_SETTINGS
        made.append(PostdateProcess(tmp_path / name, settings))
    for one in made:
        one.start(wait=False)
    for one in made:
        one.wait_until_ready(timeout_s=TIMEOUT_S)
    yield made
    for one in made:
        one.stop()
    server.stop()


def asked(service: PostdateProcess, path: str, role: str) -> object:
    bearer = {"Authorization": f"Bearer {token(role).decode()}"}
    with urlopen(Request(f"{service.web_url}{path}", headers=bearer), timeout=TIMEOUT_S) as reply:
        return json.loads(reply.read())


@pytest.mark.s3_server
def test_lists_and_pattern_consumers_see_the_topics_of_all(services: list[PostdateProcess]) -> None:

    def is_shared() -> bool:
        found = asked(services[0], "/postdate/v1/cluster", ADMIN)
        assert isinstance(found, dict)
        return [len(one["bundles"]) for one in found["services"]] == [2, 2]

    wait_until(is_shared, timeout_s=TIMEOUT_S)
    hosts = ",".join(one.url.removeprefix("pulsar://") for one in services)
    client = pulsar.Client(
        f"pulsar://{hosts}", authentication=pulsar.AuthenticationToken(token(ADMIN).decode()), logger=QUIET
    )
    try:
        for topic in TOPICS.values():
            client.create_producer(topic).send(topic.encode())
        for one in services:
            listed = asked(one, "/admin/v2/persistent/public/default", ADMIN)
            assert isinstance(listed, list)
            assert sorted(listed) == sorted(TOPICS.values())
        consumer = client.subscribe(
            re.compile("persistent://public/default/orders-.*"), "s", initial_position=pulsar.InitialPosition.Earliest
        )
        assert {consumer.receive(30_000).data().decode() for _ in TOPICS} == {*TOPICS.values()}
    finally:
        client.close()
