"""What scripts/install says while it is at work, with stand-ins for what it runs; and setup.py, on
two kernels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.terminal import Terminal

PROJECT = Path(__file__).resolve().parents[2]

#: As uv 0.13 talks when it installs: on standard error, and of each package at the end.
UV = """#!/bin/bash
case "$1" in
  --version) echo "uv 0"; exit;;
esac
if [ -t 2 ]; then echo "uv's own progress" >&2; fi
echo "Resolved 124 packages in 3ms" >&2
echo "Downloading pyspark (490.1MiB)" >&2
echo "install:   kernels: 10 of 49 compiled" >> "$SPILLWAY_BUILD_PROGRESS"
sleep 1.2
echo " Downloaded pyspark" >&2
for i in $(seq 200); do echo " + package$i==1.0" >&2; done
[ -z "$UV_FAILS" ] || { echo "error: No space left on device" >&2; exit 2; }
echo "Installed 124 packages in 2s" >&2
"""


@pytest.fixture
def project(tmp_path: Path) -> dict[str, str]:
    """A directory with the script and stand-ins; gives the environment to run it in."""
    root = tmp_path / "project"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(PROJECT / "scripts" / "install", root / "scripts" / "install")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {
        "uv": UV,
        "java": "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n",
        "cc": "#!/bin/sh\n",
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$2" = compileall ] && echo "$*" >> compiled.txt\nexit 0\n')
    python.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if k not in {"CI", "JAVA_HOME"}}
    return environment | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "SCRIPT": str(root / "scripts" / "install"),
        "TMPDIR": str(tmp_path),
    }


def test_without_a_terminal_it_says_each_stage_and_not_each_package(
    project: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [project["SCRIPT"]], env=project, capture_output=True, text=True, check=False, timeout=60
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for line in (
        "install: packages and kernels into .venv",
        "install:   Downloading pyspark (490.1MiB)",
        "install:   kernels: 10 of 49 compiled",
        "install:   Installed 124 packages in 2s",
        "install: the Terraform provider",
        "install: the jars of Delta Lake",
    ):
        assert line in said
    assert "package7==1.0" not in said
    assert len(said.splitlines()) < 20, said
    assert all(line.startswith("install: ") for line in said.splitlines()), said
    left = [path.name for path in tmp_path.iterdir()]
    assert sorted(left) == ["project", "tools"], "the file of its progress is gone"


def test_packages_are_compiled_when_the_lock_has_changed(
    project: dict[str, str], tmp_path: Path
) -> None:
    def compiled() -> list[str]:
        subprocess.run(
            [project["SCRIPT"]], env=project, capture_output=True, check=True, timeout=60
        )
        calls = root / "compiled.txt"
        directories = [line.split()[-1] for line in calls.read_text().splitlines()]
        calls.unlink()
        return directories

    root = tmp_path / "project"
    lock = root / "uv.lock"
    lock.touch()
    assert compiled() == [".venv/lib", "services"]
    os.utime(lock, (0, 0))
    assert compiled() == ["services"]
    later = (root / ".venv" / "compiled").stat().st_mtime + 10
    os.utime(lock, (later, later))
    assert compiled() == [".venv/lib", "services"]


def test_it_says_why_it_failed(project: dict[str, str]) -> None:
    done = subprocess.run(
        [project["SCRIPT"]],
        env=project | {"UV_FAILS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "No space left on device" in done.stderr


def test_on_a_terminal_the_tools_show_their_own(project: dict[str, str]) -> None:
    run = f"import os; os.execv({project['SCRIPT']!r}, [{project['SCRIPT']!r}])"
    terminal = Terminal("-c", run, env=project)
    said = terminal.read_until()
    assert terminal.close() == 0, said
    assert "uv's own progress" in said
    assert "kernels: 10 of 49 compiled" in said


def test_a_build_tells_how_far_it_is(tmp_path: Path) -> None:
    shutil.copy(PROJECT / "setup.py", tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        "[project]\n"
        "name = 'x'\n"
        "version = '0'\n"
        "[tool.setuptools]\n"
        "packages = []\n"
        "package-dir = {'' = 'services'}\n"
    )
    kernels = tmp_path / "services" / "spillway" / "_kernels"
    (kernels / "room").mkdir(parents=True)
    for name in ("first", "room/second"):
        (kernels / f"{name}.pyx").write_text("# cython: language_level=3\nvalue = 1\n")
    progress = tmp_path / "progress"
    progress.touch()
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=tmp_path,
        env={
            **os.environ,
            "SPILLWAY_BUILD_PROGRESS": str(progress),
            "SPILLWAY_KERNEL_FLAGS": "-O0",
        },
        capture_output=True,
        check=True,
        timeout=120,
    )
    said = progress.read_text().splitlines()
    assert said[0].startswith("install:   kernels: translating 2, ")
    assert said[1:] == [
        "install:   kernels: 1 of 2 compiled",
        "install:   kernels: 2 of 2 compiled",
    ]
    assert {path.parent for path in kernels.rglob("*.so")} == {kernels, kernels / "room"}
