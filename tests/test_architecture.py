"""The walls: a file imports from its own room and from those above it in ARCHITECTURE.md, however it imports."""

import ast
import importlib
import re
from graphlib import TopologicalSorter

import pytest

from places import ROOT
from svysynth.core.registry import MECHANISMS, MODELS

PACKAGE = ROOT / "src/svysynth"
MOST_LINES = 400
MOST_ENTRIES = 10
"""Beside `__init__`, `__main__` and `py.typed`."""
BY_NAME = {"__init__.py", "mechanisms/base.py", "models/base.py"}
"""The files that import what a list names: the public names, the list of mechanisms, and that of models."""
GENERATED = {"_abc_impl"}


def listed_rooms():
    """The rooms of the table, in import order."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return [name.strip("/").removesuffix(".py") for name in re.findall(r"^\| `([\w/.]+)` \|", text, re.MULTILINE)]


def room_of(path):
    return path.split("/")[0].removesuffix(".py")


ROOMS = [*listed_rooms()[:-1], "__init__", listed_rooms()[-1], "__main__"]
"""In import order: the public names are imported by the command line alone."""


def source_files():
    """Every file but the first lines of folders, `cli/__init__.py` and the like."""
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    return sorted(files - {str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("*/**/__init__.py")})


def source(path):
    return (PACKAGE / path).read_text(encoding="utf-8")


def imported_names(text):
    """What a source imports of svysynth, by any form: a module, a name of one, or by text that can be read here."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert not any(alias.name == "*" for alias in node.names), "imports are by name"
            if (node.module or "").split(".")[0] == "svysynth":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "svysynth")
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            name = written_out(node.args[0]) if node.args else None
            if name and name.split(".")[0] == "svysynth":
                yield name


def imports_by_computed_name(text):
    """Whether a source can import what cannot be read here: by a text that it makes, or through another's hands."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            if not node.args or written_out(node.args[0]) is None:
                return True
        elif isinstance(node, ast.ImportFrom) and (node.module or "") == "importlib":
            if any(alias.name == "import_module" and alias.asname for alias in node.names):
                return True
        elif isinstance(node, ast.Name) and node.id in ("exec", "eval"):
            return True
    return False


def called(node):
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def written_out(node):
    """A text that stands in the source, in one piece or added up; None where it is computed."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [written_out(node.left), written_out(node.right)]
    elif isinstance(node, ast.JoinedStr):
        parts = [written_out(part) for part in node.values]
    else:
        return None
    return None if None in parts else "".join(parts)


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
    return {file_of(name) for name in imported_names(source(path))}


def calls(path, name):
    return any(isinstance(node, ast.Call) and called(node) == name for node in ast.walk(ast.parse(source(path))))


def test_the_root_is_read_at_a_glance():
    entries = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert entries == {*ROOMS, "py.typed"}
    assert len(entries - {"__init__", "__main__", "py.typed"}) <= MOST_ENTRIES


def test_tests_are_in_the_rooms_of_what_they_test():
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - {"golden", "shared", "wheel"} == {room for room in ROOMS if not room.startswith("__")}


def test_no_two_files_import_each_other_directly_or_through_others():
    imports = {path: imported_files(path) - {path} for path in source_files()}
    assert len(list(TopologicalSorter(imports).static_order())) == len(imports)


def test_a_room_imports_only_from_rooms_above_its_own():
    for path in source_files():
        for imported in imported_files(path):
            assert ROOMS.index(room_of(imported)) <= ROOMS.index(room_of(path)), f"{path} imports {imported}"


def test_only_lists_name_what_is_imported():
    assert {path for path in source_files() if imports_by_computed_name(source(path))} == BY_NAME
    for member in MECHANISMS:
        assert room_of(file_of(member.home)) == "mechanisms"
    for model in MODELS:
        assert room_of(file_of(model.home)) == "models"


def test_nothing_overrides_what_is_concrete():
    """Except the methods that every object has, and what a class of another library asks for."""
    for kind in own_classes():
        for parent in kind.__mro__[1:]:
            if parent.__module__.split(".")[0] != "svysynth" or getattr(parent, "_is_protocol", False):
                continue
            for name, inherited in vars(parent).items():
                concrete = callable(getattr(inherited, "fget", inherited))
                abstract = getattr(inherited, "__isabstractmethod__", False)
                own = name == "__call__" or not name.startswith("__")
                if concrete and not abstract and own and name not in GENERATED:
                    assert name not in vars(kind), f"{kind.__name__}.{name} overrides that of {parent.__name__}"


def own_classes():
    modules = {path.removesuffix(".py").replace("/", ".") for path in source_files()} - {"__main__"}
    for module in modules:
        for kind in vars(importlib.import_module(f"svysynth.{module}")).values():
            if isinstance(kind, type) and kind.__module__.split(".")[0] == "svysynth":
                yield kind


IMPORTS = [
    ("from svysynth.core.errors import SurveyError", "core/errors.py"),
    ("from svysynth.core import errors", "core/errors.py"),
    ("from svysynth import pipeline", "pipeline.py"),
    ("from svysynth import SurveyError", "__init__.py"),
    ("import svysynth", "__init__.py"),
    ("import svysynth.core.errors", "core/errors.py"),
    ("import svysynth.core.errors as e", "core/errors.py"),
    ("def late():\n    from svysynth.core import errors as e", "core/errors.py"),
    ("if TYPE_CHECKING:\n    from svysynth.core import errors", "core/errors.py"),
    ("import importlib\nimportlib.import_module('svysynth.core.errors')", "core/errors.py"),
    ("from importlib import import_module\nimport_module('svysynth.' + 'core' + '.errors')", "core/errors.py"),
    ("import_module(f'svysynth.core.errors')", "core/errors.py"),
    ("__import__('svysynth.core.errors')", "core/errors.py"),
]


@pytest.mark.parametrize(("text", "file"), IMPORTS)
def test_every_form_of_import_is_seen(text, file):
    assert [file_of(name) for name in imported_names(text)] == [file]
    assert not imports_by_computed_name(text)


@pytest.mark.parametrize(
    "text",
    [
        "import_module(f'svysynth.{room}.errors')",
        "import_module('svysynth.' + room)",
        "importlib.import_module(name)",
        "__import__(name)",
        "from importlib import import_module as load",
        "exec(text)",
    ],
)
def test_imports_that_cannot_be_read_are_seen(text):
    assert imports_by_computed_name(text)


@pytest.mark.parametrize("text", ["from . import errors", "from .errors import SurveyError", "from svysynth import *"])
def test_relative_and_starred_imports_are_refused(text):
    with pytest.raises(AssertionError, match="imports are"):
        list(imported_names(text))


# --- the privacy boundary ---

WRITERS = [
    *("publishing/public_folder.py", "privacy/manifest.py"),
    *(f"publishing/report/{name}.py" for name in ("public", "excel", "page")),
]
"""They write what is public."""
CONFIDENTIAL = {
    *("survey/survey.py", "survey/on_disk.py", "survey/large_files.py", "survey/design.py"),
    *("core/streams.py", "models/base.py", "models/sampler.py"),
    *("mechanisms/pseudo_posterior/calibration.py", "mechanisms/pseudo_posterior/record_bounds.py"),
    "publishing/internal_folder.py",
}
"""What could hold confidential data."""
READERS = ["svysynth.survey.files.open_data", "svysynth.survey.files.read_columns"]


def users(name):
    """The files that import a name, which is there."""
    module, _, attribute = name.rpartition(".")
    defined = [getattr(node, "name", None) for node in ast.parse(source(file_of(module))).body]
    assert attribute in defined, name
    return {path for path in source_files() if name in imported_names(source(path))}


def makers(name):
    """The files that call a class, which is there."""
    assert any(f"class {name}" in source(path) for path in source_files())
    return {path for path in source_files() if calls(path, name)}


def test_public_writers_see_a_release_and_nothing_confidential():
    assert set(source_files()) >= {*WRITERS, *CONFIDENTIAL}, "a name above is not a file"
    for path in WRITERS:
        assert not imported_files(path) & CONFIDENTIAL, path
    for name in READERS:
        assert users(name).isdisjoint(WRITERS), name


def test_posteriors_from_noisy_sums_see_a_measurement_and_nothing_of_the_survey():
    posteriors = [path for path in source_files() if path.startswith("mechanisms/noisy_sums/posterior/")]
    assert posteriors
    for path in posteriors:
        assert not [found for found in imported_files(path) if room_of(found) == "survey"], path


def test_public_writers_are_called_by_the_pipeline_alone():
    assert users("svysynth.publishing.release_folder.write_release") == {"pipeline.py"}
    assert users("svysynth.publishing.public_folder.publish") == {"publishing/release_folder.py"}
    assert users("svysynth.publishing.report.public.public_page") == {"publishing/public_folder.py"}
    assert users("svysynth.publishing.public_folder.make_manifest") == set()


def test_releases_and_charges_are_made_in_one_place_each():
    assert makers("Release") == {"pipeline.py"}
    assert makers("Charge") == {"privacy/ledger.py"}


# --- files ---


def test_files_stay_one_noun_with_a_first_paragraph():
    for path in source_files():
        text = source(path)
        assert text.count("\n") <= MOST_LINES, path
        assert ast.get_docstring(ast.parse(text)), path


def test_only_the_command_line_prints():
    for path in source_files():
        nodes = ast.walk(ast.parse(source(path)))
        assert not any(isinstance(node, ast.Name) and node.id == "print" for node in nodes), path
