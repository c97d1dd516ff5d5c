"""What a file of the project imports of the project, by its statements: within functions and for types, too."""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def all_imported(files: Iterable[Path]) -> set[Path]:
    """Return these files, and the files of the project that they import, themselves or by way of others."""
    seen = set(files)
    new = seen
    while new:
        new = {found for path in new for found in imported(path)} - seen
        seen = seen | new
    return seen


@cache
def imported(file: Path) -> frozenset[Path]:
    """Return the files of the project that a file imports itself, with the packages that these are in."""
    found = set()
    for module in imported_modules(file):
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):
            place = ROOT.joinpath(*parts[:depth])
            found |= {path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()}
    return frozenset(found)


@cache
def imported_modules(file: Path) -> tuple[str, ...]:
    """Return the dotted names in a file's import statements, of modules and of what is imported from them."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
    return tuple(sorted(modules))
