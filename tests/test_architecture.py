"""The walls: ARCHITECTURE.md lists every file in import order, and a file imports only from those above it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/svysynth"
MOST_LINES = 400


def listed_rooms():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return re.findall(r"^([\w/]+\.py)  ", text, re.MULTILINE)


def source_files():
    """Every file but the first lines of folders, `studies/__init__.py` and the like."""
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    return sorted(files - {str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("*/**/__init__.py")})


def imported_rooms(path):
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("svysynth."):
            yield node.module.removeprefix("svysynth.").replace(".", "/") + ".py"
        elif isinstance(node, ast.Import):
            yield from ("__init__.py" for alias in node.names if alias.name == "svysynth")


def test_every_file_is_on_the_map():
    assert sorted(listed_rooms()) == source_files()


def test_a_file_imports_only_from_rooms_above_its_own():
    order = {room: position for position, room in enumerate(listed_rooms())}
    for room in order:
        for imported in imported_rooms(room):
            assert order[imported] < order[room], f"{room} imports {imported}"


def test_files_stay_one_noun_with_a_first_paragraph():
    for room in source_files():
        text = (PACKAGE / room).read_text(encoding="utf-8")
        assert text.count("\n") <= MOST_LINES, room
        assert ast.get_docstring(ast.parse(text)), room


def test_only_the_command_line_prints():
    for room in source_files():
        nodes = ast.walk(ast.parse((PACKAGE / room).read_text(encoding="utf-8")))
        assert not any(isinstance(node, ast.Name) and node.id == "print" for node in nodes), room
