"""The wheel alone: built, installed without extras or constraints in a fresh environment, and put to work.

What a reader does first has to work with what the wheel declares and nothing else: `svysynth demo`, and the README's
Python. `make wheel` runs this; where the packages cannot be had it fails.
"""

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; the script stops where it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nleft with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet")
    run(*pip, "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    return next(folder.glob("svysynth-*.whl"))


def fresh_environment(folder: Path, *requirements: str | Path) -> Path:
    """A new environment with these packages and what they ask for; the folder of its programs."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "--no-compile", *requirements, cwd=folder)
    return programs


def readme_python() -> str:
    """The Python that the README shows."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def put_to_work(programs: Path, folder: Path) -> None:
    """Run the demo, and the README's Python beside what it wrote."""
    shown = run(programs / "svysynth", "demo", cwd=folder)
    assert "report.html" in shown, shown
    printed = run(programs / "python", "-c", readme_python(), cwd=folder)
    assert printed.count("field by gender") > 1, printed


def main() -> None:
    """Build, install, run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = fresh_environment(folder / "environment", build_wheel(folder))
        put_to_work(programs, folder)
    sys.stdout.write("The wheel alone runs the demo and the README's Python.\n")


if __name__ == "__main__":
    main()
