"""A core decides alone: outside `dispatcher/core` nobody sets a field of it, or changes a part of it directly."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

_OF_A_CORE = {"core", "_core", "_intake", "plan", "consumer"}
"""How the shell names a core, and those of its parts that it refers to."""

_READERS = {"get", "items", "keys", "values", "damaged", "damaged_in", "are_damaged"}
_READERS |= {"cleared_total", "entries", "key_status", "newcomers", "ranges_of"}


def _shell() -> list[Path]:
    return [path for path in (ROOT / "dispatcher").rglob("*.py") if ROOT / "dispatcher/core" not in path.parents]


def _is_of_a_core(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is a core, or something in it."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and node.attr in names:
            return True
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


def _changes(source: str, names: set[str] = _OF_A_CORE) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=owner, ctx=ast.Store() | ast.Del()) if _is_of_a_core(owner, names):
                yield ast.unparse(node)
            case ast.Subscript(value=owner, ctx=ast.Store() | ast.Del()) if _is_of_a_core(owner, names):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=owner), attr=method)) if (
                _is_of_a_core(owner, names) and method not in _READERS
            ):
                yield ast.unparse(node.func)


@pytest.mark.parametrize(
    "change",
    [
        "self.core.gate = gate",
        "self._core.tracker_deliver_at_ms = min(times_ms)",
        "self.dispatcher.core.ack_sets[position] = words",
        "del core.ack_sets[position]",
        "self.consumer.messages_out += 1",
        "self.core.gate.close()",
        "self._core.plan.note_recovered(is_recovering)",
    ],
)
def test_a_change_from_outside_is_found(change: str) -> None:
    assert list(_changes(change))


@pytest.mark.parametrize(
    "use",
    [
        "self.core = core",
        "self.core.close_gate()",
        "rate = self.core.gate.rate_per_second",
        "self.core.redelivery_counts.get(position, 0)",
    ],
)
def test_an_event_and_a_question_are_no_change(use: str) -> None:
    assert list(_changes(use)) == []


def test_nobody_outside_sets_a_field_of_a_core() -> None:
    found = {path.name: list(_changes(path.read_text())) for path in _shell()}
    # Other rooms reach a core through its dispatcher.
    rooms = [path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name not in ("benchmarks", "dispatcher")]
    for path in [path for room in rooms for path in room.rglob("*.py") if "dispatcher.core" in path.read_text()]:
        found[path.name] = list(_changes(path.read_text(), {"core"}))

    assert {"reader.py", "dispatcher.py", "subscription.py"} <= found.keys()
    assert {name: changes for name, changes in found.items() if changes} == {}
