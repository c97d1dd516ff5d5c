"""A Redis of a test's own. Without `redis-server` its test is skipped on a laptop, and fails in CI."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from postdate.demo.process import free_ports, wait_until


@contextmanager
def running_redis(folder: Path) -> Iterator[str]:
    """Run a Redis; gives its URL."""
    server = shutil.which("redis-server")
    if server is None:
        reason = "there is no redis-server (apt-get install redis-server)"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}, which CI must have")
        pytest.skip(reason)
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}/0"
    words = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process, redis.Redis.from_url(url) as client:

        def answers() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        wait_until(answers, timeout_s=20)
        yield url
        process.terminate()
