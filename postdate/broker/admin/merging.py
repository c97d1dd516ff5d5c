"""One answer made of those of several services, for each kind of answer; pure functions that the table names.

The first answer is that of the service that was asked.
"""

import heapq
from collections.abc import Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET

from managed_ledger.positions.value_types import Json
from postdate.broker.admin.backup_handlers import BackupAnswer
from postdate.broker.admin.cluster_handlers import ClusterAnswer
from postdate.broker.admin.replies import Reply
from postdate.broker.admin.scheduled_requests import BackupRequest, ListTopics, ListTrail
from postdate.broker.admin.trail import TrailAnswer
from postdate.broker.scheduled import answers

T = TypeVar("T")


def all_names(_: Any, found: Sequence[list[str]]) -> list[str]:
    """Join lists of names, in order and each once.

    >>> all_names(None, [["a", "c"], ["b", "c"]])
    ['a', 'b', 'c']
    """
    return sorted(set().union(*found))


def topics_of_all(asked: ListTopics, found: Sequence[answers.Topics]) -> answers.Topics:
    """Merge pages of the list of topics, each of which begins behind the same topic and has as many as were wanted."""
    topics = sorted((one for page in found for one in page.topics), key=lambda one: one.name)
    limit = len(topics) if asked.limit is UNSET else asked.limit
    is_cut = len(topics) > limit or any(page.next is not None for page in found)
    topics = topics[:limit]
    following = topics[-1].name if is_cut and topics else None
    return answers.Topics(topics=topics, next=following, total=sum(page.total for page in found))


def operation_of_all(_: None, found: Sequence[answers.OperationAnswer]) -> answers.OperationAnswer:
    """Merge how far an operation is: a backup is made by all services, and any other one by one of them."""
    first = found[0]
    for one in found[1:]:
        first.searching |= one.searching
        first.searched += one.searched
        first.matched += one.matched
        first.done += one.done
        first.finished &= one.finished
        first.error = first.error or one.error
    return first


def backup_of_all(_: BackupRequest, found: Sequence[BackupAnswer]) -> BackupAnswer:
    """Merge the backups of the services' bundles, which are one; a bundle is missing that none of them had."""
    first = found[0]
    for one in found[1:]:
        first.files += one.files
        first.bytes += one.bytes
        first.new_files += one.new_files
        first.new_bytes += one.new_bytes
        first.missing = [bundle for bundle in first.missing if bundle in one.missing]
    return first


def trail_of_all(asked: ListTrail, found: Sequence[TrailAnswer]) -> TrailAnswer:
    """Merge the last changes of each service, and leave the last ones of all."""
    merged = heapq.merge(*(one.entries for one in found), key=lambda one: one.time_ms, reverse=True)
    return TrailAnswer(entries=list(islice(merged, asked.limit)))


def cluster_of_all(_: None, replies: Sequence[Reply]) -> ClusterAnswer:
    """Take what each service says of itself, as the others may not know its load; one may not answer."""
    answer = msgspec.json.decode(replies[0].body, type=ClusterAnswer)
    others = {one.service: one for one in replies[1:]}
    for place, service in enumerate(answer.services):
        reply = others.get(service.name)
        if reply is None:
            continue
        if reply.status != web.HTTPOk.status_code:
            service.problem = reply.reason
            continue
        said = msgspec.json.decode(reply.body, type=ClusterAnswer).services
        answer.services[place] = next((one for one in said if one.name == service.name), service)
    return answer


def sums(_: Any, found: Sequence[T]) -> T:
    """Add the fields of structs that are all numbers."""
    first: Any = found[0]
    fields = type(first).__struct_fields__
    total: T = type(first)(**{name: sum(getattr(one, name) for one in found) for name in fields})
    return total


def health_of_all(_: Any, replies: Sequence[Reply]) -> web.Response:
    """Merge what `/health` says; a part that fails, or does not answer, is a problem of the whole."""
    answer: Json = msgspec.json.decode(replies[0].body)
    problems: list[str] = [*answer.pop("problems", [])]
    for one in replies[1:]:
        if one.status not in (200, 503):
            problems.append(one.reason)
        elif one.status == 503:
            said = msgspec.json.decode(one.body).get("problems") or ["it is failing"]
            problems += [f"{one.service}: {problem}" for problem in said]
    is_failing = bool(problems) or answer["status"] != "ok"
    answer["status"] = "failing" if is_failing else "ok"
    if problems and "version" in answer:
        # With access control neither a version nor problems are told.
        answer["problems"] = problems
    return web.json_response(answer, status=503 if is_failing else 200)


def health_lines_of_all(_: Any, replies: Sequence[Reply]) -> web.Response:
    """Merge the lines of Pulsar's own check."""
    own = replies[0]
    problems = own.body.decode().splitlines() if own.status == 503 else []
    for one in replies[1:]:
        if one.status == 503:
            problems += [f"{one.service}: {line}" for line in one.body.decode(errors="replace").splitlines()]
        elif one.status != 200:
            problems.append(one.reason)
    return web.Response(text="\n".join(problems) or "ok", status=503 if problems else 200)
