"""`postdate token`: keys and tokens for clients, with the commands and options of `pulsar tokens`.

Exit codes: 0 done, 1 the token is invalid (`validate`), 2 wrong usage. No existing file is overwritten, the file of a
secret is readable by its owner alone, and no error text holds a key or a token.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import click

from postdate.broker.cli.common import refusing
from postdate.broker.configuration.access import PUBLIC_ALGORITHMS
from postdate.command_line.endings import EXIT_CODE_WRONG, help_end, refuse
from postdate.command_line.options import in_order
from postdate.command_line.output import json_option, print_json
from postdate.command_line.times import relative_seconds

P = ParamSpec("P")
R = TypeVar("R")

SECRET_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
_OWNER_ONLY: Final = 0o600
_FOR_ALL: Final = 0o644

_algorithm_of_pair = click.option(
    "-a",
    "--signature-algorithm",
    "algorithm",
    type=click.Choice(PUBLIC_ALGORITHMS),
    default="RS256",
    show_default=True,
    help="The algorithm that the private key signs with.",
)
_takes_token = in_order(
    click.argument("token_text", metavar="[TOKEN]", required=False),
    click.option("-i", "--stdin", "from_stdin", is_flag=True, help="Read the token from the first line of the input."),
    click.option("-f", "--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Read it from FILE."),
    json_option(),
)


@click.group(
    epilog=help_end(
        "postdate token create-secret-key --output secret.key",
        "postdate token create --secret-key file:secret.key --subject anna --expiry-time 30d",
        "postdate token show --token-file anna.token",
    )
)
def token() -> None:
    """Make keys, and tokens that they sign, for clients; the options are those of `pulsar tokens`."""


def _refused(command: Callable[P, R]) -> Callable[P, R]:
    """Turn an error of usage into one line and exit code 2."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ValueError as error:
            refuse(str(error))

    return refusing(run)


@token.command("create-secret-key", epilog=help_end("postdate token create-secret-key --output secret.key"))
@click.option(
    "-a",
    "--signature-algorithm",
    "algorithm",
    type=click.Choice(SECRET_ALGORITHMS),
    default="HS256",
    show_default=True,
    help="An algorithm that it is long enough for.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write it to FILE, a new one.")
@click.option("-b", "--base64", "is_base64", is_flag=True, help="Write it as base64, for data:;base64,TEXT.")
@json_option("the secret as base64, or where it was written")
@_refused
def create_secret_key(algorithm: str, output: Path | None, is_base64: bool, is_json: bool) -> None:
    """Make a secret that signs tokens and checks them (tokenSecretKey)."""
    from base64 import b64encode

    from postdate.broker.authentication.token_making import new_secret

    secret = new_secret(algorithm)
    written = b64encode(secret) if is_base64 else secret
    if output is not None:
        _write_new(output, written, mode=_OWNER_ONLY)
    if is_json:
        print_json({"secretKey": b64encode(secret).decode()} if output is None else {"output": str(output)})
    elif output is None:
        sys.stdout.buffer.write(written)


@token.command(
    "create-key-pair",
    epilog=help_end(
        "postdate token create-key-pair --output-private-key private.key --output-public-key public.key",
        "postdate token create-key-pair -a ES256 --output-private-key private.key --output-public-key public.key",
    ),
)
@_algorithm_of_pair
@click.option("--output-private-key", "private", type=click.Path(path_type=Path), metavar="FILE", required=True)
@click.option("--output-public-key", "public", type=click.Path(path_type=Path), metavar="FILE", required=True)
@json_option("where they were written")
@_refused
def create_key_pair(algorithm: str, private: Path, public: Path, is_json: bool) -> None:
    """Make a private key that signs tokens and a public one that checks them (tokenPublicKey)."""
    from postdate.broker.authentication.token_making import new_key_pair

    private_key, public_key = new_key_pair(algorithm)
    _write_new(private, private_key, mode=_OWNER_ONLY)
    try:
        _write_new(public, public_key, mode=_FOR_ALL)
    except (OSError, ValueError):
        # A private key without its public key is useless, so both files are written or none.
        private.unlink()
        raise
    if is_json:
        print_json({"privateKey": str(private), "publicKey": str(public)})


@token.command(
    epilog=help_end(
        "postdate token create --secret-key file:secret.key --subject anna --expiry-time 30d",
        "postdate token create --private-key file:private.key --subject anna",
    )
)
@click.option("-s", "--subject", required=True, metavar="ROLE", help="The role of the token, which grants are made to.")
@click.option("-sk", "--secret-key", metavar="KEY", help="The secret: file:PATH, data:;base64,TEXT, PATH or base64.")
@click.option("-pk", "--private-key", metavar="KEY", help="The private key, in the same notations.")
@_algorithm_of_pair
@click.option(
    "-e", "--expiry-time", metavar="TIME", help="It ends after this: 90s, 5m, 1h, 3d, 2w, 10y. Default: never."
)
@click.option("-hs", "--headers", multiple=True, metavar="NAME=VALUE", help="One more header; repeatable.")
@json_option()
@_refused
def create(
    subject: str,
    secret_key: str | None,
    private_key: str | None,
    algorithm: str,
    expiry_time: str | None,
    headers: tuple[str, ...],
    is_json: bool,
) -> None:
    """Make a token for a role, and print it."""
    from postdate.broker.authentication.keys import private_signing_key, secret_signing_key
    from postdate.broker.authentication.token_making import new_token

    if not subject.strip():
        raise ValueError("--subject is empty, and a token without a role is accepted nowhere")
    if (secret_key is None) == (private_key is None):
        raise ValueError("give one key that signs the token: --secret-key or --private-key")
    with _about("--expiry-time"):
        lifetime_s = None if expiry_time is None else relative_seconds(expiry_time)
    further = _headers(headers)
    with _about("--secret-key" if private_key is None else "--private-key"):
        if private_key is not None:
            key = private_signing_key(private_key, algorithm)
        else:
            assert secret_key is not None
            key = secret_signing_key(secret_key)
    expires_at_s = None if lifetime_s is None else _now_s() + lifetime_s
    made = new_token(key, subject, expires_at_s=expires_at_s, headers=further)
    if is_json:
        print_json({"token": made})
    else:
        click.echo(made)


@token.command(
    epilog=help_end("postdate token show --token-file anna.token", "postdate token show --stdin < anna.token")
)
@_takes_token
@_refused
def show(token_text: str | None, from_stdin: bool, token_file: Path | None, is_json: bool) -> None:
    """Print what stands in a token, header and claims; its signature is not looked at."""
    from postdate.broker.authentication.token_making import token_parts

    header, claims = token_parts(_token(token_text, from_stdin, token_file))
    if is_json:
        click.echo(json.dumps({"header": header, "claims": claims}))
        return
    click.echo(f"{_json(header)}\n---\n{_json(claims)}")


@token.command(
    epilog=help_end(
        "postdate token validate --secret-key file:secret.key --token-file anna.token",
        "postdate token validate --public-key file:public.key --stdin < anna.token",
        wrong="the token is not accepted",
    )
)
@_takes_token
@click.option("-sk", "--secret-key", metavar="KEY", help="The secret: file:PATH, data:;base64,TEXT, PATH or base64.")
@click.option("-pk", "--public-key", metavar="KEY", help="The public key, in the same notations.")
@_algorithm_of_pair
@_refused
def validate(
    token_text: str | None,
    from_stdin: bool,
    token_file: Path | None,
    is_json: bool,
    secret_key: str | None,
    public_key: str | None,
    algorithm: str,
) -> None:
    """Check a token against a key, as the service does."""
    from postdate.broker.authentication.keys import public_verification_key, secret_verification_key
    from postdate.broker.authentication.provider import AuthenticationError
    from postdate.broker.authentication.token import TokenProvider, TokenRules, verified_claims

    if (secret_key is None) == (public_key is None):
        raise ValueError("give one key that checks the token: --secret-key or --public-key")
    with _about("--secret-key" if public_key is None else "--public-key"):
        if public_key is not None:
            key = public_verification_key(public_key, algorithm)
        else:
            assert secret_key is not None
            key = secret_verification_key(secret_key)
    shown = _token(token_text, from_stdin, token_file).encode()
    try:
        TokenProvider(TokenRules(key=key)).authenticate(shown, None, now_ms=_now_s() * 1000)
        claims = verified_claims(shown, key)
    except AuthenticationError as error:
        click.echo(json.dumps({"valid": False, "reason": str(error)}) if is_json else str(error), err=not is_json)
        sys.exit(EXIT_CODE_WRONG)
    click.echo(json.dumps({"valid": True, "claims": claims}) if is_json else _json(claims))


@contextmanager
def _about(option: str) -> Iterator[None]:
    """Say which option a `ValueError` is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _headers(texts: tuple[str, ...]) -> dict[str, str]:
    from postdate.broker.authentication.token_making import RESERVED_HEADERS

    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ValueError(f"--headers {text}: must be NAME=VALUE")
        if name in RESERVED_HEADERS:
            raise ValueError(f"--headers {name}: the key decides how a token is checked")
        found[name] = value
    return found


def _token(text: str | None, from_stdin: bool, file: Path | None) -> str:
    """Return the token of the argument or the options, otherwise of the variable `TOKEN`, as Pulsar does."""
    if [text is not None, from_stdin, file is not None].count(True) > 1:
        raise ValueError("give the token once: as an argument, with --stdin or with --token-file")
    if text is not None:
        return text.strip()
    if from_stdin:
        return sys.stdin.readline().strip()
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError:
            raise ValueError(f"--token-file {file}: it is no token") from None
    if "TOKEN" in os.environ:
        return os.environ["TOKEN"].strip()
    raise ValueError("give the token: as an argument, with --stdin, with --token-file or as TOKEN in the environment")


def _write_new(path: Path, data: bytes, *, mode: int) -> None:
    """Write a file that does not exist yet: an overwritten key is lost for good."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise ValueError(f"{path} exists, and a key that is overwritten is lost: name another file") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _now_s() -> int:
    return time.time_ns() // 1_000_000_000
