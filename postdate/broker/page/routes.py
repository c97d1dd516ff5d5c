"""The files of the page, read once and served with headers for security and caching.

    GET /             the page
    GET /page/...     its modules, style, icon and charting library (uPlot, with its licence)

The files hold no data, so every caller may read them. The page reads its data from the API, with the token of its user.
The files are read when the module is imported, so no other file of the machine can be asked for.
"""

import hashlib
import mimetypes
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import web

_HEADERS: Final = {
    # Scripts, styles and connections of this origin alone: a name that came from a producer can run nothing.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A browser keeps the page but asks each time whether it has changed, so an upgraded service shows its own page.
    "Cache-Control": "no-cache",
}
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}


@dataclass(frozen=True, slots=True)
class _File:
    """One file, as it is sent."""

    content: bytes
    content_type: str
    etag: str


def _file(found: Traversable) -> _File:
    content = found.read_bytes()
    suffix = f".{found.name.rpartition('.')[2]}"
    content_type = _TYPES.get(suffix) or mimetypes.guess_type(found.name)[0] or "application/octet-stream"
    return _File(content, content_type, hashlib.sha256(content).hexdigest()[:32])


def _files_below(folder: Traversable, path: str) -> dict[str, _File]:
    found: dict[str, _File] = {}
    for one in folder.iterdir():
        if one.is_dir():
            found |= _files_below(one, f"{path}{one.name}/")
        else:
            found[f"{path}{one.name}"] = _file(one)
    return found


_FILES: Final = _files_below(files("postdate.broker.page") / "static", "/page/")
_FILES["/"] = _FILES.pop("/page/index.html")

PAGE_PATHS: Final = frozenset(_FILES)
"""The paths that every caller may read."""


def page_response(request: web.Request) -> web.Response:
    """Return the answer to a request for a file of the page.

    Raises:
        HTTPNotFound: The page has no file of this path.
    """
    file = _FILES.get(request.path)
    if file is None:
        raise web.HTTPNotFound
    known = request.if_none_match or ()
    is_known = any(one.value in (file.etag, "*") for one in known)
    response = web.Response(status=304, headers=_HEADERS) if is_known else _whole(file)
    response.etag = file.etag
    return response


def _whole(file: _File) -> web.Response:
    return web.Response(body=file.content, content_type=file.content_type, charset="utf-8", headers=_HEADERS)
