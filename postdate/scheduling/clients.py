"""A client of `pulsar-client` with the credentials of a call over HTTP; its errors go to stderr, never to stdout."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pulsar

from postdate.scheduling.api import TlsFiles, Token


def new_client(service_url: str, *, token: Token, tls_files: TlsFiles) -> "pulsar.Client":
    """Return a client.

    Args:
        service_url: Where clients connect.
        token: The caller's token, or a function that gives one; None for none.
        tls_files: The authorities to trust, the caller's certificate and its key, each None for none.
    """
    # Imported late: the extra `client` brings it.
    import pulsar

    authorities, certificate, key = tls_files
    options: dict[str, Any] = {
        # Its logger of the console writes to stdout.
        "logger": pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/stderr"),
        "tls_trust_certs_file_path": authorities,
        "tls_certificate_file_path": certificate,
        "tls_private_key_file_path": key,
        # Off by default there. The calls over https check the name, too.
        "tls_validate_hostname": True,
    }
    if token is not None:
        options["authentication"] = pulsar.AuthenticationToken(token)
    elif certificate is not None:
        # A client that is asked for a role names the method; the certificate alone stands for none.
        options["authentication"] = pulsar.AuthenticationTLS(certificate, key)
    return pulsar.Client(service_url, **options)
