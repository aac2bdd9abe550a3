"""The prose: every command it shows is run, and shows what the command prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import svysynth
from generate import CONSOLE, command_line_page, files_page, run, trimmed
from svysynth.core.spec.columns import ColumnSpec
from svysynth.core.spec.sections import section_of
from svysynth.core.spec.variables import VariableSpec
from svysynth.core.spec.whole import parse_spec

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    run("svysynth demo", folder)
    return folder


def console_blocks(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    return [(match["command"], match["output"]) for match in CONSOLE.finditer(text)]


@pytest.mark.parametrize(("command", "output"), [*console_blocks("README.md"), *console_blocks("docs/regression.md")])
def test_pages_show_what_the_commands_print(demo_folder, command, output):
    assert run(command, demo_folder) == trimmed(output)


def shell_commands():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("svysynth")]


def test_the_readme_s_other_commands_run(demo_folder):
    """One after another: some need what others have made."""
    commands = shell_commands()
    assert len(commands) > 2
    for command in commands:
        run(command, demo_folder)


def test_the_readme_s_python_example_runs(demo_folder):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=demo_folder, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("field by gender") > 1


def test_the_spec_page_s_example_is_a_spec_with_the_defaults():
    text = (ROOT / "docs/spec.md").read_text(encoding="utf-8")
    spec = parse_spec(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    assert spec.estimation == svysynth.EstimationSpec()


def test_the_spec_page_s_examples_of_variables_are_a_spec():
    text = (ROOT / "docs/spec.md").read_text(encoding="utf-8")
    example = next(
        block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[survey.variables." in block
    )
    spec = parse_spec('[survey]\ndata = "a.csv"\noutcome = "salary"\nweight = "w"\npublic = "field"\n' + example)
    assert spec.survey.kinds == {"hours": "amount", "status": "category", "in_work": "yes/no"}
    assert [spec.survey.may_miss(name) for name in spec.survey.kinds] == [True, False, True]


def test_every_setting_is_documented():
    text = (ROOT / "docs/spec.md").read_text(encoding="utf-8")
    for section in ("survey", "privacy", "about", "model", "estimation", "standin"):
        for key in section_of(svysynth.Spec.model_fields[section].annotation).model_fields:
            assert f"| `{key}` |" in text, key
    for key in svysynth.TableSpec.model_fields:
        assert f"| `{key}` |" in text, key
    for key in VariableSpec.model_fields:
        assert f"| `{key}` |" in text, key
    for key, field in ColumnSpec.model_fields.items():
        assert f"| `{field.alias or key}` |" in text, key


def test_the_list_of_files_is_up_to_date():
    assert (ROOT / "docs/files.md").read_text(encoding="utf-8") == files_page(), "run `make docs`"


def test_the_command_line_page_is_up_to_date():
    assert (ROOT / "docs/cli.md").read_text(encoding="utf-8") == command_line_page(), "run `make docs`"


def test_every_linked_file_exists():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
