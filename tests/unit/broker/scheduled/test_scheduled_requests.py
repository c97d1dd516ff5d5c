"""Answers to requests about scheduled messages; a refusal names the field that it is about."""

import pytest

from postdate.broker.admin import scheduled_requests as requests
from postdate.broker.admin.openapi import document
from postdate.broker.admin.scheduled_requests import RequestError

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "messageIds"),
        ({"all": False}, "all"),
        ({"all": 1}, "all"),
        ({"all": True, "key": "k"}, "key"),
        ({"messageIds": ["1:0"], "from": 5}, "from"),
        ({"messageIds": []}, "messageIds"),
        ({"messageIds": "1:0"}, "messageIds"),
        ({"messageIds": ["1:0", "x"]}, "messageIds"),
        ({"messageIds": ["99999999999999999999:0"]}, "messageIds"),
        ({"messageIds": ["1:4294967296"]}, "messageIds"),
        ({"messageIds": ["1:0"] * 10_001}, "messageIds"),
        ({"key": 5}, "key"),
        ({"key": "a", "keyBase64": "YQ=="}, "keyBase64"),
        ({"keyBase64": "*"}, "keyBase64"),
        ({"property": "no sign"}, "property"),
        ({"property": []}, "property"),
        ({"property": {"a": 1}}, "property"),
        ({"property": ["a=1", "a=2"]}, "property"),
        ({"from": "yesterday"}, "from"),
        ({"from": True}, "from"),
        ({"from": -1}, "from"),
        ({"until": 2**63}, "until"),
        ({"from": NOW_MS, "until": NOW_MS}, "until"),
        ({"from": NOW_MS // 1_000}, "from"),
        ({"from": str(NOW_MS // 1_000)}, "from"),
        ({"until": NOW_MS // 1_000}, "until"),
        ({"from": 0}, "from"),
    ],
)
def test_a_selector_that_says_nothing_or_two_things_is_refused(body, field) -> None:
    with pytest.raises(RequestError) as refused:
        requests.parse_selector(body)

    assert (refused.value.status, refused.value.field) == (400, field)
    assert refused.value.advice


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "deliverAtMs"),
        ({"deliverAtMs": NOW_MS - 1}, "deliverAtMs"),
        ({"deliverAtMs": NOW_MS + 1, "delayMs": 1}, "delayMs"),
        ({"deliverAtMs": 1_000 * NOW_MS}, "deliverAtMs"),
        ({"delayMs": -1}, "delayMs"),
        ({"delayMs": 1.5}, "delayMs"),
        ({"shiftMs": "soon"}, "shiftMs"),
        ({"shiftMs": None}, "shiftMs"),
    ],
)
def test_a_new_time_that_is_none_or_past_is_refused(body, field) -> None:
    with pytest.raises(RequestError) as refused:
        requests.parse_new_time(body, NOW_MS)

    assert (refused.value.status, refused.value.field) == (400, field)


@pytest.mark.parametrize("value", [NOW_MS // 1_000, str(NOW_MS // 1_000), 0, 631_151_999_999])
def test_seconds_for_milliseconds_are_refused_in_every_time_field(value: int | str) -> None:
    """Such a message would be due at once, and such a selection would mean everything or nothing."""
    for parse in (requests.parse_selector, requests.parse_range):
        for field in ("from", "until"):
            with pytest.raises(RequestError, match="is before 1990 in milliseconds: it may be seconds") as refused:
                parse({field: value})
            assert (refused.value.status, refused.value.field) == (400, field)
            assert "2027-01-15T08:00:00Z" in refused.value.advice
    with pytest.raises(RequestError, match="deliverAtMs is past") as refused:
        requests.parse_new_time({"deliverAtMs": value}, NOW_MS)
    assert "it may be seconds" in refused.value.advice


def test_a_date_before_1990_that_is_written_out_is_no_mistake() -> None:
    assert requests.parse_range({"from": "1970-01-01T00:00:01Z", "until": 631_152_000_000}) == (1_000, 631_152_000_000)


@pytest.mark.parametrize("rate", [0, -1, "fast", True, float("nan"), 10**9])
def test_a_rate_that_is_none_is_refused(rate) -> None:
    with pytest.raises(RequestError) as refused:
        requests.parse_rate({"ratePerSecond": rate})

    assert refused.value.field == "ratePerSecond"


def test_a_field_that_is_not_known_is_refused_by_its_name() -> None:
    with pytest.raises(RequestError) as refused:
        requests.check_fields({"kye": "k"}, requests.SELECTION_FIELDS, "field")

    assert (refused.value.status, refused.value.field) == (400, "kye")


@pytest.mark.parametrize("digits", ["1" + "0" * 20, "9" * 5_000, "-" + "9" * 30], ids=["21", "5000", "minus"])
def test_an_error_tells_no_other_number_than_was_given(digits: str) -> None:
    def parse_limit(field: str, value: str) -> int:
        return requests.parse_whole(field, requests.number_of_query(value), 1, 1_000)

    for parse in (requests.parse_time, parse_limit):
        with pytest.raises(RequestError, match="a number of 20 or more digits"):
            parse("from", digits)


def test_zeros_in_front_do_not_change_a_number() -> None:
    assert requests.number_of_query("7".zfill(30)) == 7
    assert requests.parse_time("from", "1800000000000".zfill(40)) == 1_800_000_000_000


def test_times_are_taken_in_both_forms() -> None:
    for text in (NOW_MS, str(NOW_MS), "2027-01-15T08:00:00Z", "2027-01-15T09:00:00+01:00", "2027-01-15T09:00:00 01:00"):
        assert requests.parse_time("from", text) == NOW_MS


@pytest.mark.parametrize("text", ["2027-01-15T08:00:00", "2027-01-15T08:00", "2027-01-15", "2027-01-15 08:00:00"])
@pytest.mark.parametrize("field", ["from", "until"])
def test_a_time_without_a_zone_is_refused_by_field_with_how_to_write_it(text: str, field: str) -> None:
    """As commands and the client for Python refuse it: it is another instant on every machine."""
    with pytest.raises(RequestError, match=f"{field}: .*names no time zone: end it with Z or an offset") as refused:
        requests.parse_selector({field: text})

    assert (refused.value.status, refused.value.field) == (400, field)
    assert "2027-01-15T08:00:00Z" in refused.value.advice
    with pytest.raises(RequestError, match=r"deliverAtMs: .*names no time zone"):
        requests.parse_new_time({"deliverAtMs": text}, NOW_MS)


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
    assert all("with a time zone" in str(time["oneOf"][1]["description"]) for time in times)


def test_the_openapi_document_names_every_field_that_is_taken() -> None:
    schemas = document()["components"]["schemas"]

    assert set(schemas["Selection"]["properties"]) == requests.SELECTION_FIELDS
    assert set(schemas["NewTime"]["properties"]) == requests.RESCHEDULE_FIELDS
