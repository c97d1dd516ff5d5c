"""Addresses from which the service can be reached, and requests on its web port that are meant for it."""

from typing import Any

import pytest

from postdate.broker.configuration.config import BrokerConfig, ConfigError, load_config
from postdate.broker.network.listening import WebAudience, check_bind_address, describe_listening

NAMES = {
    "localhost": ["127.0.0.1", "::1"],
    "half.example": ["127.0.0.1", "10.0.0.7"],
    "mail.example": ["10.0.0.7"],
}


def resolve(host: str) -> list[str]:
    if host not in NAMES:
        raise OSError(-2, "Name or service not known")
    return NAMES[host]


def check(*overrides: str) -> str | None:
    return check_bind_address(load_config(None, environment={}, overrides=overrides), resolve=resolve)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.5", "::1", "::ffff:127.0.0.1", "localhost"])
def test_this_machine_alone_needs_nothing(host: str) -> None:
    assert check(f"bindAddress={host}") is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::ffff:0.0.0.0", "10.0.0.7", "half.example", "mail.example"])
def test_what_others_reach_is_refused_without_authentication(host: str) -> None:
    """Also a name of which one address is another than loopback."""
    with pytest.raises(ConfigError) as caught:
        check(f"bindAddress={host}")

    assert str(caught.value).startswith(f"--set bindAddress={host}: other machines reach it without authentication. ")
    for mended_by in ("authenticationEnabled=true", "authenticationProviders", "127.0.0.1", "insecureBindAllowed=true"):
        assert mended_by in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "mail.example"])
def test_it_is_allowed_to_who_says_so_and_gives_a_warning(host: str) -> None:
    warning = check(f"bindAddress={host}", "insecureBindAllowed=true")

    assert warning is not None
    assert warning.startswith(f"bindAddress={host} is reached from other machines without authentication")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "mail.example"])
def test_with_authentication_it_is_allowed(host: str) -> None:
    provider = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"

    assert check(f"bindAddress={host}", "authenticationEnabled=true", f"authenticationProviders={provider}") is None


def test_an_anonymous_role_that_may_do_everything_is_no_authentication() -> None:
    """Without authorization a client without credentials may change everything, as without authentication."""
    provider = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
    keys = (
        "bindAddress=0.0.0.0",
        "authenticationEnabled=true",
        f"authenticationProviders={provider}",
        "anonymousUserRole=stranger",
    )

    with pytest.raises(ConfigError, match="anonymousUserRole lets clients in without credentials"):
        check(*keys)
    assert check(*keys, "authorizationEnabled=true") is None
    warning = check(*keys, "insecureBindAllowed=true")
    assert warning is not None
    assert "without authentication" in warning


def test_a_name_without_an_address_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"bindAddress=nowhere.example: this name has no address: .*not known"):
        check("bindAddress=nowhere.example", "insecureBindAllowed=true")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "127.0.0.1, this machine alone"),
        ("localhost", "localhost, this machine alone"),
        ("0.0.0.0", "0.0.0.0, every network of this machine; without authentication"),
        ("10.0.0.7", "10.0.0.7; without authentication"),
    ],
)
def test_the_banner_says_where_it_listens(host: str, expected: str) -> None:
    assert describe_listening(BrokerConfig(bind_address=host)) == expected


def refused(
    host: str | None,
    *,
    bound: str = "127.0.0.1",
    advertised: str | None = None,
    cluster: str | None = None,
    local: str = "127.0.0.1",
    method: str = "GET",
    **headers: Any,
) -> bool:
    config = BrokerConfig(bind_address=bound, advertised_address=advertised, cluster_address=cluster)
    audience = WebAudience.of(config, public_host="box.internal")
    return (
        audience.refusal(
            method=method,
            hosts=[] if host is None else [host],
            origins=headers.get("origins", []),
            fetch_site=headers.get("fetch_site"),
            local=local,
        )
        is not None
    )


@pytest.mark.parametrize(
    ("host", "bound", "local"),
    [
        ("127.0.0.1:8080", "127.0.0.1", "127.0.0.1"),
        ("LocalHost:8080", "127.0.0.1", "127.0.0.1"),
        ("localhost.", "127.0.0.1", "127.0.0.1"),
        ("[::1]:8080", "::1", "::1"),
        ("localhost", "::1", "::1"),
        ("10.0.0.7:8080", "10.0.0.7", "10.0.0.7"),
        ("10.0.0.7", "0.0.0.0", "10.0.0.7"),
        ("10.0.0.7", "::", "::ffff:10.0.0.7"),
        ("localhost", "0.0.0.0", "172.17.0.2"),
        ("mail.example", "mail.example", "10.0.0.7"),
        ("box.internal", "0.0.0.0", "10.0.0.7"),
        (None, "127.0.0.1", "127.0.0.1"),
    ],
)
def test_a_request_for_the_services_own_address_is_answered(host: str | None, bound: str, local: str) -> None:
    assert not refused(host, bound=bound, local=local)


@pytest.mark.parametrize(
    ("host", "bound", "local"),
    [
        ("evil.example", "127.0.0.1", "127.0.0.1"),
        ("evil.example:8080", "0.0.0.0", "10.0.0.7"),
        ("localhost.evil.example", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.evil.example", "127.0.0.1", "127.0.0.1"),
        ("10.0.0.8", "0.0.0.0", "10.0.0.7"),
        ("localhost", "10.0.0.7", "10.0.0.7"),
        ("0.0.0.0", "127.0.0.1", "127.0.0.1"),
        ("", "127.0.0.1", "127.0.0.1"),
        ("localhost, evil.example", "127.0.0.1", "127.0.0.1"),
        ("evil.example@localhost", "127.0.0.1", "127.0.0.1"),
        ("localhost:80:80", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_a_request_for_another_host_is_refused(host: str, bound: str, local: str) -> None:
    """A page's own name that leads here makes the browser think that this port is the page's."""
    assert refused(host, bound=bound, local=local)


def test_the_advertised_address_is_the_services_own() -> None:
    assert refused("post.example:9000")
    assert not refused("post.example:9000", advertised="Post.Example")


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origins": ["http://evil.example"]},
        {"origins": ["http://localhost"]},
        {"origins": ["http://localhost:9090"]},
        {"origins": ["null"]},
        {"origins": [""]},
        {"origins": ["http://localhost:8080", "http://evil.example"]},
        {"origins": ["ftp://localhost:8080"]},
        {"fetch_site": "cross-site"},
        {"fetch_site": "same-site"},
        {"fetch_site": "cross-site", "origins": ["http://localhost:8080"]},
    ],
)
def test_a_page_of_another_origin_changes_nothing(method: str, headers: dict[str, Any]) -> None:
    assert refused("localhost:8080", method=method, **headers)


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("localhost:8080", {}),
        ("localhost:8080", {"origins": ["http://localhost:8080"]}),
        ("localhost:8080", {"origins": ["http://localhost:8080"], "fetch_site": "same-origin"}),
        ("localhost:8080", {"fetch_site": "none"}),
        ("localhost", {"origins": ["https://localhost"]}),
        ("localhost:443", {"origins": ["https://localhost"]}),
    ],
)
def test_a_program_and_a_page_of_this_port_may_change(host: str, headers: dict[str, Any]) -> None:
    assert not refused(host, method="POST", **headers)


def test_reading_is_the_browsers_to_refuse() -> None:
    """It shows no page what another origin has answered, as long as that does not say otherwise."""
    assert not refused("localhost:8080", origins=["http://evil.example"], fetch_site="cross-site")


def test_the_name_of_all_services_is_one_of_each() -> None:
    """Of three services behind one address, each has an address of its own that look-ups answer."""
    assert not refused("All.example:8080", bound="0.0.0.0", advertised="one.example", cluster="all.example")
    assert not refused("one.example:8080", bound="0.0.0.0", advertised="one.example", cluster="all.example")
    assert refused("all.example:8080", bound="0.0.0.0", advertised="one.example")
