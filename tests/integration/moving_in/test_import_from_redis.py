"""`postdate import` from a sorted set and from a Celery broker, both real: what comes over, and what a second run does."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from postdate.demo.process import wait_until
from tests.helpers.page_programs import run_program, working, write_programs
from tests.helpers.services.services import RunningService
from tests.integration.moving_in.conftest import Ask

pytestmark = pytest.mark.slow

DUE_S = 1_900_000_000.25
DUE_MS = 1_900_000_000_250


@pytest.fixture
def store(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


def scheduled(ask: Ask) -> dict[str, dict[str, Any]]:
    """Return the scheduled messages of the topic by their own ids."""
    lines = ask("scheduled list T --json --payload --limit 100000").stdout
    return {one["id"]: one for one in json.loads(lines)["messages"]}


def payloads(ask: Ask) -> set[bytes]:
    return {base64.b64decode(one["payloadBase64"]) for one in scheduled(ask).values()}


def moved(ask: Ask, words: str) -> tuple[int, int, list[Any]]:
    answer = json.loads(ask(f"import {words} --json").stdout)
    return answer["stored"], answer["storedBefore"], answer["left"]
