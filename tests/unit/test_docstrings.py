"""Every public method of the product says what it promises: in its own docstring, or in that of what it implements."""

import ast
import importlib
import inspect
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from postdate.command_line.extras import MODULES_OF_EXTRAS

ROOT = Path(__file__).parents[2]
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/py.typed"))


def _modules() -> Iterator[tuple[ModuleType, ast.Module]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "pb" in path.parts or path.name == "__main__.py":
                continue
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            try:
                yield importlib.import_module(name), ast.parse(path.read_text())
            except ModuleNotFoundError as error:
                extras = {module for modules in MODULES_OF_EXTRAS.values() for module in modules}
                if (error.name or "").partition(".")[0] not in extras:
                    raise


def _classes(tree: ast.AST, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], ast.ClassDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield (*names, node.name), node
            yield from _classes(node, (*names, node.name))


def _promised(protocol: type) -> set[str]:
    """The public methods of a protocol, and of those that it extends."""
    bases = [one for one in protocol.__mro__ if getattr(one, "_is_protocol", False) and one is not typing.Protocol]
    return {
        name
        for one in bases
        for name, member in vars(one).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    }


def undocumented(of: type, protocols: Sequence[type], names: Sequence[str]) -> list[str]:
    """Return those of a class's methods that have no docstring, nor anything documented that they implement."""
    fulfilled = [one for one in protocols if all(hasattr(of, name) for name in _promised(one))]
    missing = []
    for name in names:
        origins = [*of.__mro__, *(one for one in fulfilled if name in _promised(one))]
        members = [inspect.getattr_static(one, name, None) for one in origins]
        if not any(getattr(member, "__doc__", None) for member in members if member is not None):
            missing.append(f"{of.__module__}.{of.__qualname__}.{name}")
    return missing


class _Kept(typing.Protocol):
    def keep(self) -> None:
        """Keep it."""


class _Keeps:
    def keep(self) -> None:
        pass

    def lose(self) -> None:
        pass


class _KeepsMore(_Keeps):
    def lose(self) -> None:
        """Lose it."""


def test_a_method_is_documented_by_itself_or_by_what_it_implements() -> None:
    assert undocumented(_Keeps, [_Kept], ["keep", "lose"]) == [f"{__name__}._Keeps.lose"]
    assert undocumented(_KeepsMore, [], ["keep", "lose"]) == [f"{__name__}._KeepsMore.keep"]


@pytest.mark.slow
def test_no_docstring_only_points_elsewhere() -> None:
    """A reference may follow what is said; it does not stand for it."""
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node)) is not None
        and text.startswith("See ")
    ]

    assert found == []


@pytest.mark.slow
def test_every_public_method_is_documented() -> None:
    modules = list(_modules())
    protocols = [
        one
        for module, _ in modules
        for one in vars(module).values()
        if isinstance(one, type) and getattr(one, "_is_protocol", False) and one.__module__ == module.__name__
    ]

    missing = []
    checked = 0
    for module, tree in modules:
        for names, node in _classes(tree):
            of: typing.Any = module
            for name in names:
                of = getattr(of, name)
            functions = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            public = [one.name for one in functions if not one.name.startswith("_")]
            if not any(name.startswith("_") for name in names):
                missing += undocumented(of, protocols, public)
                checked += len(public)

    assert missing == []
    assert checked > 1_000
