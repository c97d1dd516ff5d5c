"""ARCHITECTURE.md, the pages and docstrings name tests for what they say: they exist. Names have one meaning."""

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md"))
ROOMS = sorted(
    package.parent
    for packages in ("*/__init__.py", "postdate/*/__init__.py")
    for package in ROOT.glob(packages)
    if package.parent.name != "benchmarks"
)
TEXT = "\n".join(page.read_text() for page in PAGES)


def test_every_test_that_is_named_exists() -> None:
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    existing = {name for source in sources for name in re.findall(r"^def (test_\w+)\(", source, re.MULTILINE)}

    named = set(re.findall(r"`(test_\w+)`", TEXT))

    assert named
    assert named - existing == set()


def test_every_file_of_tests_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", TEXT)

    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_every_test_that_a_docstring_or_a_comment_names_exists() -> None:
    tests = [*(ROOT / "tests").rglob("test_*.py")]
    existing = {name for path in tests for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)}
    existing |= {path.stem for path in tests}
    named: set[str] = set()
    missing: dict[str, set[str]] = {}
    for path in _python_files():
        for text in (*_contents(path).strings, *_comments(path.read_text())):
            of_tests = set(re.findall(r"(?<![\w.*/])test_\w+", text))
            of_files = set(re.findall(r"\btests/[\w/]+\.py", text))
            named |= of_tests | of_files
            if found := (of_tests - existing) | {one for one in of_files if not (ROOT / one).exists()}:
                missing.setdefault(str(path.relative_to(ROOT)), set()).update(found)

    assert {"tests/property/tracker/test_tracker_merging.py"} <= named
    assert missing == {}


def test_each_room_is_a_package_that_has_a_layer_and_a_place_in_the_architecture() -> None:
    """Other tools find packages by themselves: a folder without `__init__.py` would not be in the wheel."""
    modules = [path for room in ROOMS for path in room.rglob("*.py")]
    rooms = {room.relative_to(ROOT).as_posix() for room in ROOMS} - {"postdate"}

    assert [str(path) for path in modules if not (path.parent / "__init__.py").exists()] == []
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {room.strip().replace(".", "/") for layer in contracts[0]["layers"] for room in layer.split("|")}
    assert layers == rooms
    assert [room for room in sorted(rooms) if f"**`{room}/`**" not in (ROOT / "ARCHITECTURE.md").read_text()] == []


def test_each_room_has_tests_in_a_folder_of_its_name() -> None:
    """Otherwise `make test ROOM=...` runs none and fails: it looks into the folders of these kinds alone."""
    (kinds,) = re.findall(r"foreach kind,([\w ]+),\$\(wildcard tests/", (ROOT / "Makefile").read_text())
    rooms = {room.name for room in ROOMS}
    tested = {path.parent.name for kind in kinds.split() for path in ROOT.glob(f"tests/{kind}/*/test_*.py")}

    assert rooms - tested == set()
    assert tested - rooms == set()


def test_the_head_of_each_room_names_its_sub_rooms() -> None:
    unnamed = [
        str(sub.parent.relative_to(ROOT))
        for room in ROOMS
        for sub in room.glob("*/__init__.py")
        if sub.parent.name != "pb" and not re.search(rf"\b{sub.parent.name}\b", (room / "__init__.py").read_text())
    ]

    assert unnamed == []


@pytest.mark.slow
def test_no_module_imports_from_a_test_and_no_helper_from_the_simulation() -> None:
    """Code that tests share is in `tests/helpers`: one test can be changed, moved and run without another one."""
    imports = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "tests").rglob("*.py")
        for name in _contents(path).imports
    }
    helpers = {(path, name) for path, name in imports if path.startswith("tests/helpers/")}

    assert ("tests/unit/broker/scheduled/test_cancel_by_id.py", "tests.helpers.scheduled_world.World") in imports
    assert {one for one in imports if re.match(r"(tests)?\.+(\w+\.)*(test_|conftest)", one[1])} == set()
    assert {one for one in helpers if re.match(r"tests\.(?!helpers\b)|\.", one[1])} == set()


def _imported(node: ast.AST) -> list[str]:
    """Return the whole names that a statement imports."""
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{'.' * node.level}{node.module or ''}.{one.name}" for one in node.names]
    return []


@pytest.mark.slow
def test_no_two_classes_have_one_name() -> None:
    """The name of a class means one class, in every room, in the benchmarks and in the tests."""
    places: dict[str, list[str]] = {}
    for path in _python_files():
        for name in _contents(path).classes:
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))

    assert len(places) > 500
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.slow
def test_no_two_modules_define_one_name_of_a_type() -> None:
    """Types such as `Int64Array` and `Mask` have one definition, which all rooms import."""
    places: dict[str, list[str]] = {}
    for path in _python_files(of_rooms_alone=True):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                for target in node.targets:
                    if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z][a-z]\w*", target.id):
                        places.setdefault(target.id.lstrip("_"), []).append(str(path.relative_to(ROOT)))

    assert "Int64Array" in places
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.slow
def test_the_logger_of_a_module_has_one_name() -> None:
    """It is `logger`: the log is what messages are appended to."""
    assigned = re.compile(r"^(\w+) = logging\.getLogger\(__name__\)", re.MULTILINE)

    assert {name for path in _python_files() for name in assigned.findall(path.read_text())} == {"logger"}


@pytest.mark.slow
def test_the_delivery_time_has_one_name() -> None:
    """It is `deliver_at_ms` from the header to the consumer (ARCHITECTURE.md)."""
    others = {"due_ms", "due_at_ms", "deliver_ms", "delivery_ms", "delivery_time_ms", "timestamp_ms", "next_ms"}
    others |= {"head_ms", "next_segment_ms"}
    found: dict[str, set[str]] = {}
    for path in _python_files():
        # `at_ms` is the time of an alarm or of another try, of which the schedule of messages has none.
        is_of_messages = bool({"scheduled", "scheduling"} & {*path.relative_to(ROOT).parts})
        if wrong := _contents(path).used & (others | {"at_ms"} if is_of_messages else others):
            found[str(path.relative_to(ROOT))] = wrong

    assert found == {}


@pytest.mark.slow
def test_a_clock_in_milliseconds_has_one_type() -> None:
    """It is `Clock`: any other function without arguments may give a number of anything."""
    spelled_out = re.compile(r"\bnow_ms: Callable\[")

    assert [str(path) for path in _python_files() if spelled_out.search(path.read_text())] == []


class FileContents(NamedTuple):
    """The parts of a file that the tests here look at, of one parsing."""

    imports: list[str]
    classes: list[str]
    used: set[str]
    """Names of variables, arguments and attributes."""
    strings: list[str]
    """Docstrings, of attributes as well."""


@cache
def _contents(path: Path) -> FileContents:
    contents = FileContents([], [], set(), [])
    for node in ast.walk(ast.parse(path.read_text())):
        contents.imports.extend(_imported(node))
        if isinstance(node, ast.ClassDef):
            contents.classes.append(node.name)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            contents.strings.append(node.value.value)
        contents.used.update(
            name for name in (getattr(node, attribute, None) for attribute in ("id", "arg", "attr")) if name
        )
    return contents


def _comments(source: str) -> Iterator[str]:
    """Yield the comments of a source where one can name a test; to find comments for sure takes long."""
    if re.search(r"#.*\btests?[_/]", source):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def _python_files(*, of_rooms_alone: bool = False) -> Iterator[Path]:
    """Yield the source files of all rooms, benchmarks and tests, without those that protobuf generates."""
    rooms = [room for room in ROOMS if room.parent == ROOT]
    for folder in rooms if of_rooms_alone else (*rooms, ROOT / "benchmarks", ROOT / "tests"):
        yield from (path for path in folder.rglob("*.py") if "pb" not in path.parts)
