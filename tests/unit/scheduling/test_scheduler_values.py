"""Values, refusals and errors of the client without a service of Postdate; its limit of times is the service's."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from postdate.broker.admin import scheduled_requests
from postdate.scheduling.errors import ScheduleRequestError, SchedulingError, ServiceUnavailableError
from postdate.scheduling.scheduler import Scheduler
from postdate.scheduling.values import EVERYTHING, TIME_MS_MAX, Matching, ScheduledMessage


def message_due(deliver_at_ms: int) -> ScheduledMessage:
    return ScheduledMessage(
        handle="1:0",
        deliver_at_ms=deliver_at_ms,
        publish_time_ms=1,
        key=None,
        properties={},
        size_bytes=1,
        producer_name="p",
    )


def test_the_last_time_that_a_message_can_be_given_is_the_services() -> None:
    assert TIME_MS_MAX == scheduled_requests.TIME_MS_MAX
    assert message_due(TIME_MS_MAX).deliver_at == datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


@pytest.mark.parametrize("deliver_at_ms", [TIME_MS_MAX + 1, 2**63 - 1])
def test_a_delivery_time_after_the_year_9999_is_a_value_error_that_names_the_other_field(deliver_at_ms: int) -> None:
    with pytest.raises(ValueError, match="deliver_at_ms"):
        _ = message_due(deliver_at_ms).deliver_at


@pytest.mark.parametrize(
    ("when", "field"),
    [
        ({"at": TIME_MS_MAX + 1}, "deliverAtMs"),
        ({"at": 10**18}, "deliverAtMs"),
        ({"after": timedelta(milliseconds=TIME_MS_MAX)}, "delayMs"),
        ({"after": timedelta.max}, "delayMs"),
    ],
)
def test_a_message_for_a_time_after_the_year_9999_is_refused_before_it_is_published(when, field: str) -> None:
    """Nothing listens at the address: a request would be another error."""
    with (
        Scheduler("pulsar://127.0.0.1:1", "http://127.0.0.1:1", "t") as scheduler,
        pytest.raises(ScheduleRequestError, match="outside of what can be scheduled") as refused,
    ):
        scheduler.schedule(b"x", **when)

    assert (refused.value.status, refused.value.field) == (400, field)
    assert refused.value.advice


@pytest.mark.parametrize("at", [-1, 0, 1, 1_800_000_000, 631_151_999_999])
def test_a_number_that_may_be_seconds_is_refused_before_it_is_published(at: int) -> None:
    """Nothing listens at the address: a request would be another error."""
    with (
        Scheduler("pulsar://127.0.0.1:1", "http://127.0.0.1:1", "t") as scheduler,
        pytest.raises(ScheduleRequestError, match="is before 1990 in milliseconds: it may be seconds") as refused,
    ):
        scheduler.schedule(b"x", at=at)

    assert (refused.value.status, refused.value.field) == (400, "deliverAtMs")
    assert refused.value.advice


def test_a_datetime_before_1990_is_asked_for_as_it_is() -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    assert Matching(due_from=epoch, due_until=1_800_000_000_000).to_json() == {
        "from": "1970-01-01T00:00:00+00:00",
        "until": 1_800_000_000_000,
    }


class AnsweringServer(HTTPServer):
    """A server that answers each POST with one status."""

    status = 500


@pytest.fixture
def answering() -> Iterator[AnsweringServer]:
    class StatusAnswerer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert isinstance(self.server, AnsweringServer)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(self.server.status)
            body = b'{"error": "Internal error", "field": null, "advice": "See the log"}'
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = AnsweringServer(("127.0.0.1", 0), StatusAnswerer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, ScheduleRequestError), (409, ScheduleRequestError)]
    + [(status, ServiceUnavailableError) for status in (500, 502, 503, 504, 507)],
)
def test_a_failure_within_the_service_is_no_refusal_since_a_part_may_be_done(
    answering: AnsweringServer, status: int, kind: type[SchedulingError]
) -> None:
    answering.status = status
    scheduler = Scheduler("pulsar://127.0.0.1:1", f"http://127.0.0.1:{answering.server_port}", "t")

    with pytest.raises(SchedulingError, match=r"Internal error. See the log") as failed:
        scheduler.cancel(EVERYTHING)

    assert type(failed.value) is kind


def test_a_shift_without_an_answer_names_the_operation_to_repeat() -> None:
    """Nothing listens at the address; every other change can be repeated as it is."""
    with Scheduler("pulsar://127.0.0.1:1", "http://127.0.0.1:1", "t") as scheduler:
        with pytest.raises(ServiceUnavailableError) as shifted:
            scheduler.reschedule(EVERYTHING, shift=timedelta(hours=1))
        with pytest.raises(ServiceUnavailableError) as again:
            scheduler.reschedule(EVERYTHING, shift=timedelta(hours=1), operation_id=shifted.value.operation_id)
        with pytest.raises(ServiceUnavailableError) as moved:
            scheduler.reschedule(EVERYTHING, after=timedelta(hours=1))
        with pytest.raises(ValueError, match="operation_id"):
            scheduler.reschedule(EVERYTHING, after=timedelta(hours=1), operation_id="x")

    assert shifted.value.operation_id
    assert again.value.operation_id == shifted.value.operation_id
    assert moved.value.operation_id is None


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda one: one.schedule(b"x", after=timedelta(-1)), ValueError),
        (lambda one: one.schedule(b"x", after=timedelta(1), properties={"a": 1}), TypeError),
        (lambda one: one.schedule(b"x", after=-5), TypeError),
        *((lambda one, which=which: one.cancel(which), TypeError) for which in (None, b"1:2", [b"1:2"], ["1:2", 3])),
        (lambda one: one.upcoming("anna"), TypeError),
        (lambda one: one.count("anna"), TypeError),
        (lambda one: one.upcoming(limit=-1), ValueError),
    ],
)
def test_wrong_arguments_are_refused_by_name_before_anything_is_sent(call, error: type[Exception]) -> None:
    with (
        Scheduler("pulsar://127.0.0.1:1", "http://127.0.0.1:1", "t") as scheduler,
        pytest.raises(
            error, match=r"below zero|properties|^(None|b'1:2'|3) selects|no timedelta|'anna' is no Matching"
        ),
    ):
        call(scheduler)
