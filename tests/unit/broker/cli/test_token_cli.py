"""`postdate token`: its tokens are accepted by the service, and a wrong option is one line and exit code 2."""

import base64
import json
import stat
from pathlib import Path
from typing import Any

import jwt
import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.serialization import load_der_private_key, load_der_public_key

from postdate.command_line.program import postdate as main
from postdate.command_line.times import relative_seconds

SECRETS = {"HS256": 32, "HS384": 48, "HS512": 64}
PAIRS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]


def run(*words: object, code: int = 0, given: str | bytes = "", environment: dict[str, str] | None = None) -> Result:
    result = CliRunner().invoke(main, ["token", *map(str, words)], input=given, env=environment)
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def refused(*words: object, given: str | bytes = "") -> str:
    """Return the one line that refuses, and nothing on the output."""
    result = run(*words, code=2, given=given)
    assert result.stdout == ""
    assert result.stderr.startswith("postdate: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret.key"
    run("create-secret-key", "--output", file)
    return file


def valid(token: str, *key: object, code: int = 0) -> Result:
    return run("validate", token, *key, code=code)


@pytest.mark.parametrize(("algorithm", "length"), SECRETS.items())
def test_a_secret_is_as_long_as_its_algorithm_needs_and_for_its_owner_alone(
    tmp_path: Path, algorithm: str, length: int
) -> None:
    plain, encoded = tmp_path / "plain", tmp_path / "encoded"
    run("create-secret-key", "-a", algorithm, "-o", plain)
    run("create-secret-key", "-a", algorithm, "-b", "-o", encoded)
    printed = run("create-secret-key", "-a", algorithm).stdout_bytes
    shown = run("create-secret-key", "-a", algorithm, "--base64").stdout

    found = [plain.read_bytes(), base64.b64decode(encoded.read_bytes()), printed, base64.b64decode(shown)]
    assert [len(one) for one in found] == [length] * 4
    assert len(set(found)) == 4
    assert [stat.S_IMODE(file.stat().st_mode) for file in (plain, encoded)] == [0o600, 0o600]


@pytest.mark.parametrize(("algorithm", "length"), SECRETS.items())
def test_a_secret_signs_with_the_strongest_that_it_is_long_enough_for(
    tmp_path: Path, algorithm: str, length: int
) -> None:
    """As in Pulsar."""
    file = tmp_path / "key"
    run("create-secret-key", "-a", algorithm, "-o", file)

    token = run("create", "--secret-key", file, "--subject", "anna").stdout.strip()

    assert jwt.get_unverified_header(token)["alg"] == algorithm
    assert jwt.decode(token, file.read_bytes(), algorithms=[algorithm]) == {"sub": "anna"}
    assert json.loads(valid(token, "--secret-key", f"file:{file}").stdout) == {"sub": "anna"}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", PAIRS)
def test_a_pair_of_keys_signs_and_checks_tokens(tmp_path: Path, algorithm: str) -> None:
    private, public = tmp_path / "private", tmp_path / "public"
    run("create-key-pair", "-a", algorithm, "--output-private-key", private, "--output-public-key", public)

    token = run("create", "-pk", private, "-s", "anna", "-a", algorithm).stdout.strip()

    assert jwt.get_unverified_header(token)["alg"] == algorithm
    assert json.loads(valid(token, "--public-key", public, "-a", algorithm).stdout) == {"sub": "anna"}
    assert load_der_private_key(private.read_bytes(), None).public_key() == load_der_public_key(public.read_bytes())
    assert (stat.S_IMODE(private.stat().st_mode), stat.S_IMODE(public.stat().st_mode)) == (0o600, 0o644)
    for other in ("validate", token, "-pk", private, "-a", algorithm), ("create", "-pk", public, "-s", "a"):
        assert "is not a p" in refused(*other)


def test_a_token_ends_when_it_is_told_to(secret: Path) -> None:
    before = jwt.decode(
        run("create", "-sk", secret, "-s", "anna", "-e", "1h").stdout.strip(), secret.read_bytes(), algorithms=["HS256"]
    )["exp"]
    after = jwt.decode(
        run("create", "-sk", secret, "-s", "anna", "--expiry-time", "2h").stdout.strip(),
        secret.read_bytes(),
        algorithms=["HS256"],
    )["exp"]

    assert 3_600 <= after - before < 3_660


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("1h", 3_600), ("3d", 259_200), ("2w", 1_209_600), ("10y", 315_360_000)],
)
def test_times_are_those_of_pulsar(text: str, seconds: int) -> None:
    assert relative_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "0", "0s", "-1h", "1.5h", "1 h", "1x", "2000y", "9" * 40, "1h1m", "\u0661h"]
)
def test_what_is_no_time_is_refused(secret: Path, text: str) -> None:
    assert "--expiry-time: must be" in refused("create", "-sk", secret, "-s", "anna", "-e", text)


def test_headers_can_be_added_but_not_those_that_say_how_to_check(secret: Path) -> None:
    token = run("create", "-sk", secret, "-s", "anna", "-hs", "kid=7", "--headers", "x=y=z").stdout.strip()

    header = jwt.get_unverified_header(token)
    assert (header["kid"], header["x"]) == ("7", "y=z")
    for text in ("alg=none", "crit=x", "b64=false", "x", "=x"):
        assert "--headers" in refused("create", "-sk", secret, "-s", "anna", "-hs", text)


def test_a_token_is_shown_from_wherever_it_is_given(tmp_path: Path, secret: Path) -> None:
    token = run("create", "-sk", secret, "-s", "änna", "-e", "1h").stdout
    file = tmp_path / "token"
    file.write_text(token)
    claims: dict[str, Any] = jwt.decode(token.strip(), secret.read_bytes(), algorithms=["HS256"])

    ways: list[dict[str, Any]] = [
        {"words": [token.strip()]},
        {"words": ["--stdin"], "given": token + "second line\n"},
        {"words": ["--token-file", file]},
        {"words": [], "environment": {"TOKEN": token}},
    ]
    for way in ways:
        words = way.pop("words")
        header, shown = run("show", *words, **way).stdout.split("\n---\n")
        assert (json.loads(header)["alg"], json.loads(shown)) == ("HS256", claims)
        assert '"änna"' in shown
        assert json.loads(run("show", *words, "--json", **way).stdout)["claims"] == claims
        assert json.loads(run("validate", *words, "-sk", secret, **way).stdout) == claims


def test_a_token_that_is_not_accepted_is_exit_code_1(tmp_path: Path, secret: Path) -> None:
    other = tmp_path / "other"
    run("create-secret-key", "-o", other)
    good = run("create", "-sk", secret, "-s", "anna").stdout.strip()
    old = jwt.encode({"sub": "anna", "exp": 1_000}, secret.read_bytes())
    nobody = jwt.encode({}, secret.read_bytes())
    for token, key, reason in (
        (good, other, "the token is not accepted"),
        (old, secret, "the token has expired"),
        (nobody, secret, "the token has no role"),
        ("a.b.c", secret, "the token is not accepted"),
    ):
        result = valid(token, "-sk", key, code=1)
        assert result.stdout == ""
        assert reason in result.stderr
        assert token not in result.stderr
        answer = json.loads(run("validate", token, "-sk", key, "--json", code=1).stdout)
        assert (answer["valid"], reason in answer["reason"]) == (False, True)
    assert json.loads(run("validate", good, "-sk", secret, "--json").stdout) == {
        "valid": True,
        "claims": {"sub": "anna"},
    }


@pytest.mark.parametrize("token", ["", "abc", "a.b", "a.b.c", "....", "eyJ.eyJ.x", "ä.ö.ü", "\x00"])
def test_what_is_no_token_is_not_shown(token: str) -> None:
    assert "it is no token" in refused("show", "--stdin", given=token)


def test_a_file_that_is_no_token_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xff\xfe\x00")
    assert "it is no token" in refused("show", "-f", file)
    assert "No such file" in refused("show", "-f", tmp_path / "missing")
    assert "Is a directory" in refused("show", "-f", tmp_path)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["create", "-s", "anna"], "--secret-key or --private-key"),
        (["create", "-s", "anna", "-sk", "k", "-pk", "k"], "--secret-key or --private-key"),
        (["create", "-s", " ", "-sk", "k"], "--subject is empty"),
        (["create", "-s", "anna", "-sk", "file:/no/such/file"], "--secret-key: the file /no/such/file cannot be read"),
        (["create", "-s", "anna", "-sk", "file://host/key"], "--secret-key: the file is on another machine, host"),
        (["create", "-s", "anna", "-sk", "data:;base64,aHVzaA=="], "--secret-key: the secret has 4 bytes"),
        (["create", "-s", "anna", "-pk", "data:;base64,aHVzaA=="], "--private-key: it is not a private key"),
        (["validate", "a.b.c"], "--secret-key or --public-key"),
        (["validate", "-sk", "data:;base64,aHVzaA==", "a.b.c"], "--secret-key: the secret has 4 bytes"),
        (["show"], "give the token"),
        (["show", "a.b.c", "--stdin"], "give the token once"),
    ],
)
def test_what_is_asked_wrongly_is_one_line(words: list[str], reason: str) -> None:
    text = refused(*words)

    assert reason in text
    assert "aHVz" not in text


def test_a_key_is_never_written_over_a_file(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept", tmp_path / "new"
    kept.write_bytes(b"mine")

    assert "exists" in refused("create-secret-key", "-o", kept)
    assert "exists" in refused("create-key-pair", "--output-private-key", kept, "--output-public-key", new)
    assert "exists" in refused("create-key-pair", "--output-private-key", new, "--output-public-key", kept)
    assert "exists" in refused("create-key-pair", "--output-private-key", new, "--output-public-key", new)
    assert "No such file" in refused("create-secret-key", "-o", tmp_path / "no" / "folder")

    assert kept.read_bytes() == b"mine"
    assert not new.exists()
