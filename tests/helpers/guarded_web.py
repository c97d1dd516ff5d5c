"""The web port of a service that takes tokens and looks at grants, and requests to it."""

import io
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from postdate.broker.admin.web import start_web
from postdate.broker.server.server import access_of, all_routes
from postdate.broker.service.service import Service
from tests.helpers.guarded_service import play
from tests.helpers.tokens import token

Answer = tuple[int, Any, Mapping[str, str]]
Ask = Callable[..., Awaitable[Answer]]
Story = Callable[[Service, Ask], Awaitable[None]]


async def _metrics() -> AsyncGenerator[bytes, None]:
    yield b"one 1.0\n"


async def _problems() -> list[str]:
    return ["shop/eu/orders: a secret problem"]


def play_web(folder: Path, story: Story, **access: Any) -> None:
    """Run a story on a service with its web port; `ask(role, method, path, body)` sends a request."""

    async def with_web(service: Service) -> None:
        server = await start_web(
            "127.0.0.1",
            0,
            metrics=_metrics,
            health=lambda: {"pid": 7},
            problems=_problems,
            routes=all_routes(service),
            access=access_of(service),
        )

        async def ask(
            shown: str | bytes | None, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}
        ) -> Answer:
            shown = token(shown) if isinstance(shown, str) else shown
            credentials = {} if shown is None else {"Authorization": f"Bearer {shown.decode()}"}
            text = body if isinstance(body, bytes) else json.dumps(body).encode()
            async with (
                aiohttp.ClientSession() as session,
                session.request(
                    method,
                    f"http://127.0.0.1:{server.port}{path}",
                    data=None if body is None else io.BytesIO(text),
                    headers={"Content-Type": "application/json"} | credentials | dict(headers),
                ) as reply,
            ):
                answer = await reply.text()
                is_json = reply.content_type == "application/json" and answer
                return reply.status, json.loads(answer) if is_json else answer, reply.headers

        try:
            await story(service, ask)
        finally:
            await server.close()

    play(folder, with_web, **access)
