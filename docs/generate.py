"""Make what comes from the program: docs/cli.md, docs/files.md, the manifest's schema, and what README.md shows."""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {"TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb"}

import typer
from typer.testing import CliRunner

from svysynth.cli.main import app
from svysynth.privacy.manifest import Manifest

PAGE = Path(__file__).with_name("cli.md")
FILES = Path(__file__).with_name("files.md")
SCHEMA = Path(__file__).with_name("manifest.schema.json")
README = Path(__file__).parent.parent / "README.md"
CONSOLE = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)


def command_line_page() -> str:
    """The reference of every command: its own help text."""
    parts = ["# Command line\n\nThis page is made from the commands themselves by `make docs`.\n"]
    for command in [[], *_commands(typer.main.get_command(app))]:
        help_text = CliRunner().invoke(app, [*command, "--help"], prog_name="svysynth").output
        parts.append(f"## {' '.join(['svysynth', *command])}\n\n```text\n{trimmed(help_text)}\n```\n")
    return "\n".join(parts)


def _commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """The names of every command, those of groups after the group itself."""
    for name, command in group.commands.items():
        yield [*before, name]
        if hasattr(command, "commands"):
            yield from _commands(command, (*before, name))


def files_page() -> str:
    """Every file of the package by rooms, with the first paragraph of each."""
    package = Path(__file__).parent.parent / "src" / "svysynth"
    parts = ["# Files\n\nWhat each file of the package is for: its first paragraph. Made by `make docs`.\n"]
    architecture = (package.parents[1] / "ARCHITECTURE.md").read_text("utf-8")
    for room in re.findall(r"^\| `([\w/.]+)` \|", architecture, re.MULTILINE):
        paths = sorted((package / room).rglob("*.py")) if room.endswith("/") else [package / room]
        files = [path for path in paths if path.stem != "__init__"]
        lines = (f"- `{path.relative_to(package)}`: {first_paragraph(path)}" for path in files)
        parts += [f"## {room}\n", *lines, ""]
    return "\n".join(parts)


def first_paragraph(path: Path) -> str:
    """What a file says that it is for."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def manifest_schema() -> str:
    """The JSON schema of a release's manifest."""
    return json.dumps(Manifest.model_json_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def readme() -> str:
    """The README with the output of each command it shows, run where the demo has been run."""
    with tempfile.TemporaryDirectory() as folder:
        run("svysynth demo", folder)

        def shown(match: re.Match[str]) -> str:
            return f"```console\n$ {match['command']}\n{run(match['command'], folder)}\n```"

        return CONSOLE.sub(shown, README.read_text(encoding="utf-8"))


def run(command: str, folder: str | Path) -> str:
    """The standard output of a `svysynth` command, as a reader sees it in a pipe."""
    arguments = [sys.executable, "-m", *command.split()]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, encoding="utf-8", check=True)
    return trimmed(done.stdout)


def trimmed(text: str) -> str:
    """Text without blanks at the ends of its lines."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


if __name__ == "__main__":
    PAGE.write_text(command_line_page(), encoding="utf-8")
    FILES.write_text(files_page(), encoding="utf-8")
    SCHEMA.write_text(manifest_schema(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")
