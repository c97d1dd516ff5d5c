"""The rules between the fields of requests about scheduled messages; a refusal names the field that it is about.

What a field may be is checked over HTTP (`test_scheduled_bad_input.py`).
"""

import pytest

from postdate.broker.admin import scheduled_requests as requests
from postdate.broker.admin.endpoints import document
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.admin.scheduled_requests import NewTime, SelectionRequest

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize("value", [NOW_MS // 1_000, str(NOW_MS // 1_000), 0, 631_151_999_999])
def test_seconds_for_milliseconds_are_refused_in_every_time_field(value: int | str) -> None:
    """Such a message would be due at once, and such a selection would mean everything or nothing."""
    for fields, field in (({"from_": value}, "from"), ({"until": value}, "until")):
        with pytest.raises(RefusalError, match="is before 1990 in milliseconds: it may be seconds") as refused:
            requests.conditions_of(SelectionRequest(**fields))
        assert (refused.value.status, refused.value.field) == (400, field)
        assert "2027-01-15T08:00:00Z" in refused.value.advice
    with pytest.raises(RefusalError, match="deliverAtMs is past") as refused:
        requests.new_time_of(NewTime(deliver_at_ms=value), NOW_MS)
    assert "it may be seconds" in refused.value.advice


def test_a_date_before_1990_that_is_written_out_is_no_mistake() -> None:
    selector = requests.conditions_of(SelectionRequest(from_="1970-01-01T00:00:01Z", until=631_152_000_000))
    assert (selector.from_ms, selector.until_ms) == (1_000, 631_152_000_000)


def test_zeros_in_front_do_not_change_a_number() -> None:
    assert requests.time_ms_of("from", "1800000000000".zfill(40)) == 1_800_000_000_000


def test_times_are_taken_in_both_forms() -> None:
    for text in (NOW_MS, str(NOW_MS), "2027-01-15T08:00:00Z", "2027-01-15T09:00:00+01:00", "2027-01-15T09:00:00 01:00"):
        assert requests.time_ms_of("from", text) == NOW_MS


@pytest.mark.parametrize("text", ["2027-01-15T08:00:00", "2027-01-15T08:00", "2027-01-15", "2027-01-15 08:00:00"])
@pytest.mark.parametrize("field", ["from", "until"])
def test_a_time_without_a_zone_is_refused_by_field_with_how_to_write_it(text: str, field: str) -> None:
    """As commands and the client for Python refuse it: it is another instant on every machine."""
    with pytest.raises(RefusalError, match=f"{field}: .*names no time zone: end it with Z or an offset") as refused:
        requests.time_ms_of(field, text)

    assert (refused.value.status, refused.value.field) == (400, field)
    assert "2027-01-15T08:00:00Z" in refused.value.advice
    with pytest.raises(RefusalError, match=r"deliverAtMs: .*names no time zone"):
        requests.new_time_of(NewTime(deliver_at_ms=text), NOW_MS)


def test_the_openapi_document_says_of_every_time_that_it_needs_a_zone() -> None:
    schemas = document()["components"]["schemas"]
    times = [schemas["Selection"]["properties"]["from"], schemas["NewTime"]["properties"]["deliverAtMs"]]
    times += [
        parameter["schema"]
        for path in document()["paths"].values()
        for operation in path.values()
        if isinstance(operation, dict)
        for parameter in operation.get("parameters", ())
        if parameter.get("name") in ("from", "until")
    ]

    assert len(times) > 4
    assert all("with a time zone" in str(time["anyOf"][1]["description"]) for time in times)
