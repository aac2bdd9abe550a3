"""The walls: rooms in the order of ARCHITECTURE.md, and a file imports only from those above it, however it imports."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/svysynth"
MOST_LINES = 400
ROOMS = [
    *("core", "survey", "estimation", "models", "privacy", "mechanisms", "publishing"),
    *("pipeline", "evaluation", "__init__", "cli", "__main__"),
]
"""In import order."""
MOST_ENTRIES = 10
"""Beside `__init__`, `__main__` and `py.typed`."""


def listed_files():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return re.findall(r"^([\w/]+\.py)  ", text, re.MULTILINE)


def source_files():
    """Every file but the first lines of folders, `cli/__init__.py` and the like."""
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    return sorted(files - {str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("*/**/__init__.py")})


def imported_modules(source):
    """What a source imports of svysynth, by any form: absolute, relative to nothing, a package's names, by text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if (node.module or "").split(".")[0] == "svysynth":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "svysynth")
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("svysynth."):
                    yield argument.value


def file_of(module):
    """The file of a module, or of the module whose name something is: `svysynth.core.errors.SurveyError`."""
    parts = module.split(".")[1:]
    for length in range(len(parts), 0, -1):
        path = "/".join(parts[:length]) + ".py"
        if (PACKAGE / path).is_file():
            return path
    assert len(parts) < 2 or not (PACKAGE / parts[0]).is_dir(), f"{module} is not a module"
    return "__init__.py"


def imported_files(path):
    return {file_of(module) for module in imported_modules((PACKAGE / path).read_text(encoding="utf-8"))}


def room_of(path):
    return path.split("/")[0].removesuffix(".py")


def test_the_root_is_read_at_a_glance():
    entries = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert entries == {*ROOMS, "py.typed"}
    assert len(entries - {"__init__", "__main__", "py.typed"}) <= MOST_ENTRIES


def test_every_file_is_on_the_map():
    assert sorted(listed_files()) == source_files()


def test_a_file_imports_only_from_files_above_its_own():
    order = {path: position for position, path in enumerate(listed_files())}
    for path in order:
        for imported in imported_files(path) - {path}:
            assert order[imported] < order[path], f"{path} imports {imported}"


def test_a_room_imports_only_from_rooms_above_its_own():
    for path in source_files():
        for imported in imported_files(path):
            assert ROOMS.index(room_of(imported)) <= ROOMS.index(room_of(path)), f"{path} imports {imported}"


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("from svysynth.core.errors import SurveyError", "core/errors.py"),
        ("from svysynth.core import errors", "core/errors.py"),
        ("from svysynth import pipeline", "pipeline.py"),
        ("from svysynth import SurveyError", "__init__.py"),
        ("import svysynth", "__init__.py"),
        ("import svysynth.core.errors", "core/errors.py"),
        ("def late():\n    from svysynth.core import errors as e", "core/errors.py"),
        ("import importlib\nimportlib.import_module('svysynth.core.errors')", "core/errors.py"),
    ],
)
def test_every_form_of_import_is_seen(source, file):
    assert [file_of(module) for module in imported_modules(source)] == [file]


def test_files_stay_one_noun_with_a_first_paragraph():
    for path in source_files():
        text = (PACKAGE / path).read_text(encoding="utf-8")
        assert text.count("\n") <= MOST_LINES, path
        assert ast.get_docstring(ast.parse(text)), path


def test_only_the_command_line_prints():
    for path in source_files():
        nodes = ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8")))
        assert not any(isinstance(node, ast.Name) and node.id == "print" for node in nodes), path
