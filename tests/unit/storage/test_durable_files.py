"""Durable files: whole or not at all after a kill, nothing left by an error, and synced in the
order that makes it so.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spillway.failpoints import armed
from spillway.storage import durable_files
from spillway.storage.durable_files import (
    create_file,
    overwrite_start,
    put_all_in_place,
    put_in_place,
    remove_files,
    remove_leftovers,
    replace_cache,
    replace_file,
    sync_files_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable

REPLACE = """
import sys
from pathlib import Path
from spillway.storage.durable_files import replace_file
replace_file(Path(sys.argv[1]), sys.argv[2])
print("done")
"""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced (by the path that the descriptor is open on) and renamed, in order."""
    seen: list[str] = []

    def fsync(fd: int) -> None:
        seen.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink().name}")

    def replace(self: Path, target: Path) -> Path:
        seen.append(f"rename {self.name} {target.name}")
        self.rename(target)
        return target

    monkeypatch.setattr(durable_files.os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    return seen


def run(path: Path, text: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", REPLACE, str(path), text],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SPILLWAY_FAILPOINTS": failpoint},
    )


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_who_is_killed_before_the_rename_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_file(path, "old")
    killed = run(path, "new", "storage.before_rename=kill")
    assert killed.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert (tmp_path / ".state.json.new").read_text() == "new", "it was written"
    # The next writer takes over what is left.
    assert run(path, "newer").stdout == "done\n"
    assert path.read_text() == "newer"
    assert names(tmp_path) == ["state.json"]


def test_who_is_killed_after_the_rename_leaves_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_file(path, "old")
    assert run(path, "new", "storage.after_rename=kill").returncode == -signal.SIGKILL
    assert path.read_text() == "new"
    assert names(tmp_path) == ["state.json"]


def test_a_file_is_durable_before_it_has_its_name_and_then_the_name_is(
    tmp_path: Path, steps: list[str]
) -> None:
    replace_file(tmp_path / "state.json", "ä")
    assert (tmp_path / "state.json").read_bytes() == "ä".encode()
    assert steps == [
        "sync .state.json.new",
        "rename .state.json.new state.json",
        f"sync {tmp_path.name}",
    ]


def test_a_cache_is_whole_without_a_sync(tmp_path: Path, steps: list[str]) -> None:
    replace_cache(tmp_path / "index", b"1", mode=0o640)
    assert steps == ["rename .index.new index"]
    assert stat.S_IMODE((tmp_path / "index").stat().st_mode) == 0o640


def test_a_new_file_and_its_name_are_durable(tmp_path: Path, steps: list[str]) -> None:
    fd = create_file(tmp_path / "segment", b"header")
    os.write(fd, b" and more")
    os.close(fd)
    assert (tmp_path / "segment").read_bytes() == b"header and more"
    assert steps == ["sync segment", f"sync {tmp_path.name}"]
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "segment", b"other")
    assert (tmp_path / "segment").read_bytes() == b"header and more"


def test_what_is_put_in_place_is_named_durably_where_it_is_then(
    tmp_path: Path, steps: list[str]
) -> None:
    for name in ("from", "to"):
        (tmp_path / name).mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "from" / name).write_text(name)
    put_all_in_place((tmp_path / "from" / name, tmp_path / "to" / name) for name in ("a", "b"))
    assert steps == ["rename a a", "rename b b", "sync to"]
    steps.clear()
    put_in_place(tmp_path / "from", tmp_path / "whole")
    assert steps == ["rename from whole", f"sync {tmp_path.name}"]
    assert names(tmp_path / "whole") == ["c"]


def test_files_that_others_wrote_are_synced_with_their_directory(
    tmp_path: Path, steps: list[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "part").write_text("1")
    sync_files_in(tmp_path)
    assert steps == ["sync part", f"sync {tmp_path.name}"]


def test_the_start_of_a_file_is_overwritten_in_place(tmp_path: Path, steps: list[str]) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"damaged, but what is behind it is not")
    inode = path.stat().st_ino
    overwrite_start(path, b"mended!")
    assert path.read_bytes() == b"mended!, but what is behind it is not"
    assert path.stat().st_ino == inode
    assert steps == ["sync segment"]


def test_removed_files_do_not_come_back(tmp_path: Path, steps: list[str]) -> None:
    paths = [tmp_path / "one" / "a", tmp_path / "one" / "b", tmp_path / "two" / "c"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    remove_files([*paths, tmp_path / "two" / "gone"])
    assert not any(path.exists() for path in paths)
    assert steps == ["sync one", "sync two"]
    steps.clear()
    remove_files([])
    assert steps == []


def test_leftovers_are_told_from_files(tmp_path: Path) -> None:
    for name in (".0A.snap.new", "0A.snap", "news.new", ".hidden"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".hidden", "0A.snap", "news.new"]


WRITERS: dict[str, Callable[[Path], object]] = {
    "replace_file": lambda path: replace_file(path, "new"),
    "replace_cache": lambda path: replace_cache(path, "new"),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("failpoint", ["storage.write", "storage.before_rename"])
def test_a_full_disk_leaves_the_old_file_and_no_debris(
    tmp_path: Path, writer: str, failpoint: str
) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    with armed(f"{failpoint}=error:ENOSPC"), pytest.raises(OSError, match="No space") as caught:
        WRITERS[writer](path)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_text() == "old"
    assert names(tmp_path) == ["state.json"]


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    """Root's rename over /dev/null would take it from everybody; a pipe stands for it here."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for path in (pipe, link, tmp_path):
        for replace in (replace_file, replace_cache):
            with pytest.raises(OSError, match="it is no file") as raised:
                replace(path, "new")
            assert raised.value.errno == errno.EINVAL
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(tmp_path.iterdir()) == [link, pipe]


def test_a_link_stays_one_and_what_it_leads_to_is_replaced(
    tmp_path: Path, steps: list[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "link"
    link.symlink_to("elsewhere/file")
    for text in ("first", "second"):
        replace_file(link, text)
        assert link.is_symlink()
        assert (elsewhere / "file").read_text() == text
    assert steps[:3] == ["sync .file.new", "rename .file.new file", "sync elsewhere"]
    assert list(elsewhere.iterdir()) == [elsewhere / "file"]


def test_a_file_that_can_not_be_begun_is_not_there(tmp_path: Path) -> None:
    with armed("storage.write=error:ENOSPC"), pytest.raises(OSError, match="No space"):
        create_file(tmp_path / "segment", b"header")
    assert names(tmp_path) == []
    os.close(create_file(tmp_path / "segment", b"header"))


LIMITED = """
import resource, sys
from pathlib import Path
from spillway.storage.durable_files import create_file, replace_file
path = Path(sys.argv[1])
replace_file(path, b"o" * 1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
for write in (replace_file, create_file):
    try:
        write(path if write is replace_file else path.with_name("segment"), b"n" * 9000)
    except OSError as error:
        print(error.errno)
"""


def test_a_write_that_the_system_cuts_leaves_no_debris(tmp_path: Path) -> None:
    """The kernel takes a part of it, as a disk does that has no more."""
    path = tmp_path / "state.json"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [str(errno.EFBIG)] * 2, done.stderr
    assert path.read_bytes() == b"o" * 1000
    assert names(tmp_path) == ["state.json"]


def test_a_directory_that_can_not_be_synced_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable_files, "sync_directory", refused)
    with pytest.raises(OSError, match="Input/output"):
        replace_file(tmp_path / "state.json", "new")
    # It is there for those who look, and may be so after a power failure or not.
    assert (tmp_path / "state.json").read_text() == "new"
    with pytest.raises(OSError, match="Input/output"):
        create_file(tmp_path / "segment", b"header")
    assert names(tmp_path) == ["state.json"]
