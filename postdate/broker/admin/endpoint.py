"""One endpoint of the web port: what a row of the table in `broker.admin.endpoints` says, and how it is answered.

    request ─► access (`web_access`) ─► parameters or body become a struct ─► handler ─► a struct becomes JSON

Below `/postdate/v1` an unknown field is refused. Bodies for Pulsar's paths may carry more than is read here.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache, partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, get_args

import msgspec
from aiohttp import hdrs, web

from managed_ledger.positions.value_types import Json
from postdate.broker.admin.refusal import RefusalError, is_own, refusal_of
from postdate.broker.admin.replies import Merge
from postdate.broker.admin.scheduled_requests import IDS_ADVICE, BackupRequest, Holding, SelectionRequest
from postdate.broker.slices import Turns
from postdate.broker.topics.topic_name import TopicName

COMPRESSED_BYTES_MIN: Final = 64 * 1024
"""An answer of this size is compressed, in a thread, for callers that take it."""

LINES: Final = "application/x-ndjson"
"""The type of a body with a JSON object in each line."""
_JSON: Final = "application/json"

_ACTIONS: Final = {
    "move_bundle": "unload-bundle",
    "make_backup": "backup",
    "expire_all": "expire",
    "expire_through": "expire",
    "seek_to_id": "seek",
    "seek_to_time": "seek",
}
"""What the trail calls the changes of handlers, where it is not their name."""

FORWARDED: Final = "Postdate-Forwarded"
"""A header of a request of another service: how much of the answer is wanted (`WHOLE_ANSWER`, `PART`)."""
FORWARDED_FOR: Final = "Postdate-Forwarded-For"
"""A header of such a request: the address of the caller of the other service."""
WHOLE_ANSWER: Final = "whole"
PART: Final = "part"

Asked = TypeVar("Asked")
Made = TypeVar("Made")


class Needs(Enum):
    """What a caller of an endpoint needs, where authentication and authorization are switched on."""

    NOTHING = auto()
    METRICS = auto()
    """A role, where `authenticateMetricsEndpoint` says so."""
    ROLE = auto()
    """Any role; the answer has only what the role may see."""
    PRODUCE_OR_CONSUME = auto()
    """One of these grants for the topic: counts and times are shown."""
    CONSUME = auto()
    """This grant for the topic: keys, properties and payloads are shown, or messages acknowledged."""
    PRODUCE = auto()
    """This grant for the topic: messages are published."""
    PRODUCE_AND_CONSUME = auto()
    """Both grants for the topic: a message is acknowledged, and a copy published."""
    SUPER_USER = auto()


class Reach(Enum):
    """Which of several services answers an endpoint, whichever is asked."""

    ANY = auto()
    """The one that is asked: its answer is about itself, or the same everywhere."""
    TOPIC = auto()
    """The one that has the topic in the path."""
    FIRST = auto()
    """The one that has the first bundle: changes of what all share are recorded there."""
    ALL = auto()
    """All of them; their answers are merged."""


class Text(NamedTuple):
    """The type of an answer that is no JSON."""

    content_type: str
    description: str


Handler = Callable[[Any, Any], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A row of the table.

    Attributes:
        method: The HTTP method; HEAD comes with GET.
        path: The path, with parts in braces.
        needs: What its caller needs.
        request: The type of its query (GET) or its body, None for neither.
        answer: The type of its answer, None for a 204; with `options`, that of a dry run, and the work answers a 204.
        handler: Answers it; it gets what the endpoints are served by, and the `Call`. Its docstring is the summary.
        name: Its id in the OpenAPI document, empty for the name of the handler.
        failing: The type of a 503 that it answers where a part of the service fails, None for none.
        options: The type of what its URL says, where the method is not GET; None where it says nothing.
        takes_lines: Whether the body may also be lines of JSON, each an object; the handler reads it (`objects_of`).
        is_recorded: Whether the trail (`postdate.broker.admin.trail`) records it, where it is no GET.
        reach: Which of several services answers it; None for what `reaches` finds.
        merge: Makes one answer of those of all services.
        patience_s: How long a look at all services waits for each.
    """

    method: str
    path: str
    needs: Needs
    request: Any
    answer: Any
    handler: Handler
    name: str = ""
    failing: Any = None
    options: Any = None
    takes_lines: bool = False
    is_recorded: bool = True
    reach: Reach | None = None
    merge: Merge | None = None
    patience_s: float = 30.0

    @classmethod
    def look(
        cls, path: str, needs: Needs, request: Any, answer: Any, handler: Handler, *, by_body: str = ""
    ) -> "tuple[Endpoint, Endpoint]":
        """Return the two forms of a look: a key and properties may be longer than a query can be."""
        get = cls("GET", path, needs, request, answer, handler)
        name = f"{get.operation_id}ByBody"
        return get, cls("POST", f"{path}{by_body}", needs, request, answer, handler, name, is_recorded=False)

    @property
    def operation_id(self) -> str:
        """The id in the OpenAPI document, in camel case."""
        first, *others = self.handler.__name__.split("_")
        return self.name or first + "".join(one.title() for one in others)

    @property
    def action(self) -> str:
        """What the trail calls the change, empty where it changes nothing."""
        is_change = self.is_recorded and self.method != hdrs.METH_GET
        name = self.handler.__name__
        return _ACTIONS.get(name, name.replace("_", "-")) if is_change else ""

    @property
    def reaches(self) -> Reach:
        """Which of several services answers it."""
        if self.reach is not None:
            return self.reach
        if self.merge is not None:
            return Reach.ALL
        if "{topic}" in self.path:
            return Reach.TOPIC
        return Reach.FIRST if self.action else Reach.ANY

    @property
    def is_body_optional(self) -> bool:
        """Whether a request without a body is taken: what its fields say is optional, and no selection of messages."""
        return self._is_union_with_none or (isinstance(self.request, type) and issubclass(self.request, Holding))

    @property
    def body_if_none(self) -> Any:
        """What a request without a body asks."""
        return None if self._is_union_with_none else self.request()

    @property
    def _is_union_with_none(self) -> bool:
        return type(None) in get_args(self.request)

    @property
    def has_operation_id(self) -> bool:
        """Whether its progress can be asked for, by the header `Operation-Id`."""
        return isinstance(self.request, type) and issubclass(self.request, SelectionRequest | BackupRequest)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    may_see: Callable[[TopicName], bool]
    """Whether it may see that there is a topic, and how much is scheduled."""
    may_read: Callable[[TopicName], bool]
    """Whether it may also see keys, properties and payloads."""
    is_super_user: bool


ROLE: Final = web.RequestKey("role", str)
"""Set by the access middleware; without it callers are not authenticated."""
CALLER: Final = web.RequestKey("caller", Caller)
"""Set by the access middleware; without it the caller may see everything."""
ADDRESS: Final = web.RequestKey("address", str)
"""Set where another service forwards the request and is believed; the address of its caller."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Asked]):
    """A request to an endpoint, with its query or its body as the endpoint's type of requests."""

    request: web.Request
    asked: Asked
    options: Any = None

    @property
    def topic_name(self) -> TopicName:
        """The topic in the path; see `topic_name_in`."""
        return topic_name_in(self.request)

    @property
    def caller(self) -> Caller | None:
        """The caller; None where every caller may do everything."""
        return self.request.get(CALLER)

    @property
    def role(self) -> str | None:
        """The role of the caller; None without authentication."""
        return self.request.get(ROLE)

    @property
    def address(self) -> str:
        """The IP address from which the request came; of one that is forwarded, where that is believed, the first."""
        return self.request.get(ADDRESS) or self.request.remote or ""

    @property
    def is_dry_run(self) -> bool:
        """Whether it only asks what a change would do."""
        return any(getattr(one, "dry_run", False) for one in (self.asked, self.options))

    def part(self, name: str) -> str:
        """Return a part of the path."""
        return self.request.match_info[name]


def topic_name_in(request: web.Request) -> TopicName:
    """Return the topic in the path of a request, or any topic of the namespace in it.

    Raises:
        InvalidTopicNameError: There can be no topic of this name.
    """
    parts = request.match_info
    return TopicName.of_parts(parts["tenant"], parts["namespace"], parts.get("topic", "any"))


Record = Callable[[Endpoint, Call[Any], object], None]
"""Records a change with its answer, or with the error in which it ended."""


Handle = Callable[[], Awaitable[object]]
"""Answers a request for this service alone."""


class Elsewhere(Protocol):
    """The other services of a cluster, as the endpoints know them."""

    def address_told(self, request: web.Request) -> str | None:
        """Return the address that another service says its caller has; None where it is not to be believed."""

    async def forwarded(self, endpoint: Endpoint, request: web.Request) -> web.StreamResponse | None:
        """Have the request answered by the service that it is about; None where this one is to answer."""

    async def merged(self, endpoint: Endpoint, call: "Call[Any]", own: Handle) -> object:
        """Return the answer of all services."""

    async def metrics(self, request: web.Request, own: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Return the metrics of all services, piece by piece."""


def routes_of(
    endpoints: Iterable[Endpoint],
    served_by: object,
    record: Record = lambda *_: None,
    elsewhere: Elsewhere | None = None,
) -> list[web.RouteDef]:
    """Return the routes of endpoints, to be given to `start_web`.

    Args:
        endpoints: Rows of the table.
        served_by: What the handlers get.
        record: Records changes.
        elsewhere: The other services; None for one that is alone.
    """
    return [
        (web.get if one.method == hdrs.METH_GET else partial(web.route, one.method))(
            one.path, partial(_answer, one, served_by, record, elsewhere)
        )
        for one in endpoints
    ]


async def _answer(
    endpoint: Endpoint, served_by: object, record: Record, elsewhere: Elsewhere | None, request: web.Request
) -> web.StreamResponse:
    if elsewhere is not None:
        if address := elsewhere.address_told(request):
            request[ADDRESS] = address
        if (response := await elsewhere.forwarded(endpoint, request)) is not None:
            return response
    asked = await _asked(endpoint, request)
    options = None
    if endpoint.options is not None:
        options = _of_fields(endpoint.options, _query(request), is_text=True, refuses_unknown=is_own(endpoint.path))
    call = Call(request, asked, options)
    handle: Handle = partial(endpoint.handler, served_by, call)
    if elsewhere is not None and endpoint.merge is not None and not is_part(request):
        handle = partial(elsewhere.merged, endpoint, call, handle)
    # A part, too: any caller can ask for one, and each service has changed what is its own.
    if endpoint.action and not call.is_dry_run:
        found = await _recorded(endpoint, call, handle, record)
    else:
        found = await handle()
    if isinstance(found, web.StreamResponse):
        return found
    if found is None or (options is not None and not call.is_dry_run):
        return web.Response(status=204)
    return compressed(msgspec.json.encode(found), "application/json")


def is_part(request: web.Request) -> bool:
    """Whether another service asks for the part of this one in its answer."""
    return request.headers.get(FORWARDED) == PART


async def _recorded(endpoint: Endpoint, call: Call[Any], handle: Handle, record: Record) -> object:
    """Make a change and record it, unless it is refused: below 500 nothing has changed."""
    try:
        found = await handle()
    except BaseException as error:
        # A stop cancels what takes too long, in the middle.
        refusal = refusal_of(call.request, error) if isinstance(error, Exception) else None
        if refusal is None or refusal.status >= 500:
            record(endpoint, call, error)
        raise
    record(endpoint, call, found)
    return found


def compressed(body: bytes, content_type: str) -> web.Response:
    """Return an answer that aiohttp compresses where the body is large and the caller takes it."""
    response = web.Response(
        body=body, content_type=content_type, charset="utf-8", zlib_executor_size=COMPRESSED_BYTES_MIN
    )
    if len(body) >= COMPRESSED_BYTES_MIN:
        response.enable_compression()
    return response


async def _asked(endpoint: Endpoint, request: web.Request) -> Any:
    is_strict = is_own(endpoint.path)
    if request.method in (hdrs.METH_GET, hdrs.METH_HEAD):
        return _of_fields(endpoint.request, _query(request), is_text=True, refuses_unknown=is_strict)
    if is_strict:
        # A change takes no parameters: one in the URL would be overlooked.
        _of_fields(None, _query(request), is_text=True, refuses_unknown=True)
    if endpoint.request is None or endpoint.takes_lines:
        return None
    data = await body_of(request)
    if not data and endpoint.is_body_optional:
        return endpoint.body_if_none
    if request.content_type != _JSON:
        raise _wrong_type(request, _JSON)
    if is_strict:
        return _of_fields(endpoint.request, _json_object(data), is_text=False, refuses_unknown=True)
    try:
        return msgspec.json.decode(data, type=endpoint.request)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusalError(400, f"The body cannot be used: {error}") from error


async def objects_of(
    request: web.Request, type_: Any, use: Callable[[Any], Made], *, bytes_max: int, count_max: int
) -> list[Made]:
    """Return what is made of the body: of one JSON object, or of one for each line (application/x-ndjson).

    Args:
        request: The request.
        type_: The struct of an object.
        use: Makes something of it; a `RefusalError` of it, too, is told with the number of the line.
        bytes_max: How large the body may be.
        count_max: How many lines it may have.

    Raises:
        RefusalError: The body is of another type or too large, or an object is wrong.
    """

    def made(data: bytes) -> Made:
        return use(_of_fields(type_, _json_object(data), is_text=False, refuses_unknown=True))

    is_lines = request.content_type == LINES
    if not is_lines and request.content_type != _JSON:
        raise _wrong_type(request, f"{_JSON}, or {LINES} for an object in each line")
    advice = f"Send up to {count_max} lines and {bytes_max} bytes in one request"
    data = await body_of(request.clone(client_max_size=bytes_max), advice=advice)
    if not is_lines:
        return [made(data)]
    lines = data.splitlines()
    if not 0 < len(lines) <= count_max:
        raise RefusalError(413 if lines else 400, f"The body has {len(lines)} lines", advice=advice)
    found: list[Made] = []
    turns = Turns()
    for number, line in enumerate(lines, 1):
        try:
            found.append(made(line))
        except RefusalError as error:
            raise error.in_line(number) from error
        await turns.give_way()
    return found


def _wrong_type(request: web.Request, wanted: str) -> RefusalError:
    error = f"The body must be {wanted}, but is {request.content_type}"
    return RefusalError(415, error, field="Content-Type", advice=f"Send JSON with Content-Type: {_JSON}")


async def body_of(request: web.Request, *, advice: str = IDS_ADVICE) -> bytes:
    """Return the body, decoded.

    Raises:
        RefusalError: It is too large, or cannot be decoded.
    """
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise RefusalError(413, f"The body is too large: {error.text}", advice=advice) from error
    except web.RequestPayloadError as error:
        # Nothing behind such a body can be read, so the connection ends behind the answer.
        request.content.feed_eof()
        request.protocol.close()
        advice = "Send the body as it is and without Content-Encoding, or encoded as that header says"
        raise RefusalError(400, "The body cannot be decoded", field="Content-Encoding", advice=advice) from error


def _query(request: web.Request) -> Json:
    """Return the parameters of a query; `property` may be given several times."""
    found: Json = {}
    for name in request.query:
        values = request.query.getall(name)
        if len(values) > 1 and name != "property":
            raise RefusalError(400, f"{name} is given {len(values)} times", field=name, advice="Give it once")
        found[name] = values if name == "property" else values[0]
    return found


def _json_object(data: bytes) -> Json:
    try:
        body = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusalError(400, f"The body is no JSON: {error}", advice="Send a JSON object") from error
    if not isinstance(body, dict):
        raise RefusalError(400, "The body is no JSON object", advice='Send {"name": value, ...}')
    return body


def _of_fields(type_: Any, given: Mapping[str, Any], *, is_text: bool, refuses_unknown: bool) -> Any:
    """Return the struct of fields that were given by name, each converted alone, so that a refusal names it."""
    known = _fields_of(type_)
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in known:
            values[known[name].name] = _converted(name, value, known[name].type, is_text=is_text)
        elif refuses_unknown:
            advice = f"Known are: {', '.join(sorted(known))}" if known else "This request has no parameters"
            raise RefusalError(400, f"{name!r} is no field of this request", field=name, advice=advice)
    return None if type_ is None else type_(**values)


@cache
def _fields_of(type_: Any) -> Mapping[str, Any]:
    """Return the fields of a struct by the names that requests have for them."""
    return {} if type_ is None else {one.encode_name: one for one in msgspec.structs.fields(type_)}


def _converted(name: str, value: Any, type_: Any, *, is_text: bool) -> Any:
    try:
        return msgspec.convert(value, type_, strict=not is_text)
    except msgspec.ValidationError as error:
        raise RefusalError(400, f"{name}: {error}", field=name, advice=_advice(type_)) from error


def _advice(type_: Any) -> str:
    """Return how a value of a type is written: the type's own advice, or its JSON schema."""
    for one in (type_, *getattr(type_, "__args__", ())):
        for meta in getattr(one, "__metadata__", ()):
            if meta.extra is not None:
                return str(meta.extra["advice"])
    schema = msgspec.json.schema(type_)
    schema.pop("description", None)
    return f"Write a value of the schema {json.dumps(schema)}"
