"""One page of metrics of several services."""

import asyncio
import re
from collections.abc import AsyncGenerator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from postdate.broker.admin.metrics_merging import FamilyReader, merged_pages

OWN = b"""# HELP pulsar_topics_count Topics.
# TYPE pulsar_topics_count gauge
pulsar_topics_count{cluster="c",namespace="shop/eu"} 2.0
# HELP postdate_backup_last_success_timestamp_seconds When.
# TYPE postdate_backup_last_success_timestamp_seconds gauge
# HELP postdate_connections Open.
# TYPE postdate_connections gauge
postdate_connections{cluster="c"} 3.0
# HELP pulsar_in_messages_total Messages.
# TYPE pulsar_in_messages_total counter
pulsar_in_messages_total{cluster="c",namespace="shop/eu",topic="odd\\" namespace=\\"x"} 7.0
# HELP postdate_lateness Late.
# TYPE postdate_lateness histogram
postdate_lateness_bucket{cluster="c",le="1",namespace="shop/eu"} 1
postdate_lateness_bucket{cluster="c",le="+Inf",namespace="shop/eu"} 2
postdate_lateness_count{cluster="c",namespace="shop/eu"} 2
postdate_lateness_sum{cluster="c",namespace="shop/eu"} 0.5
# HELP process_open_fds Open files.
# TYPE process_open_fds gauge
process_open_fds 12.0
"""
BACKUP = b'postdate_backup_last_success_timestamp_seconds{cluster="c"} 9.0\n'
OTHER = (
    OWN.replace(
        b"_seconds gauge\n", b'_seconds gauge\npostdate_backup_last_success_timestamp_seconds{cluster="c"} 9.0\n'
    )
    .replace(b'topic="odd\\" namespace=\\"x"', b'topic="plain"')
    .replace(b'"shop/eu"} 2.0', b'"shop/eu"} 40.0')
)


async def cut(text: bytes, size: int) -> AsyncGenerator[bytes, None]:
    for begin in range(0, len(text), size):
        yield text[begin : begin + size]


def merged(*pages: bytes, size: int = 10_000, silent: tuple[str, ...] = ()) -> str:
    async def run() -> str:
        readers = [FamilyReader(name, cut(page, size)) for name, page in zip("ab", pages, strict=False)]
        for one in readers:
            await one.begin()
        return b"".join([chunk async for chunk in merged_pages(readers, silent)]).decode()

    return asyncio.run(run())


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_each_family_is_whole_and_told_once_however_the_pages_are_cut(size: int) -> None:
    text = merged(OWN, OTHER, size=size)

    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert len(heads) == len(set(heads)) == 2 * 7
    assert text == merged(OWN, OTHER)
    names = [re.split("[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")]
    places = [re.sub("(?<=lateness)_(bucket|count|sum)$", "", one) for one in names]
    families = [one for at, one in enumerate(places) if not at or places[at - 1] != one]
    assert len(families) == len(set(families)) == len(set(places))


def test_what_is_of_a_process_names_it_and_so_do_the_sums_of_namespaces() -> None:
    families = {one.name: one for one in text_string_to_metric_families(merged(OWN, OTHER))}

    def values(name: str) -> list[tuple[dict[str, str], float]]:
        return [(one.labels, one.value) for one in families[name].samples]

    assert values("pulsar_topics_count") == [
        ({"cluster": "c", "namespace": "shop/eu", "process": "a"}, 2.0),
        ({"cluster": "c", "namespace": "shop/eu", "process": "b"}, 40.0),
    ]
    assert values("postdate_connections") == [
        ({"cluster": "c", "process": "a"}, 3.0),
        ({"cluster": "c", "process": "b"}, 3.0),
    ]
    assert values("process_open_fds") == [({"process": "a"}, 12.0), ({"process": "b"}, 12.0)]
    assert values("postdate_backup_last_success_timestamp_seconds") == [({"cluster": "c", "process": "b"}, 9.0)]
    assert [labels["topic"] for labels, _ in values("pulsar_in_messages")] == ['odd" namespace="x', "plain"]
    assert [value for _, value in values("postdate_lateness")] == 2 * [1.0, 2.0, 2.0, 0.5]


def test_a_service_that_does_not_answer_has_a_series_that_says_so() -> None:
    lines = merged(OWN, silent=("b",)).splitlines()

    assert lines[-2:] == ['postdate_process_up{process="a"} 1.0', 'postdate_process_up{process="b"} 0.0']


def test_families_in_another_order_or_of_one_service_alone_are_all_there() -> None:
    """A service of another version may have some more."""
    more = b"# HELP new_one New.\n# TYPE new_one gauge\nnew_one 1.0\n"

    text = merged(OWN, more + OWN)

    assert 'new_one{process="b"} 1.0' in text
    assert text.count("# HELP postdate_connections") == 1
    assert 'postdate_connections{cluster="c",process="b"} 3.0' in text
