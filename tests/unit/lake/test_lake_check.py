"""What is said of a lake before Spark is started for it; remedies are followed."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from spillway.consumer.slot import SlotPosition
from spillway.errors import (
    InvalidRequest,
    JarsMissing,
    JavaMissing,
    LakeBehindSlot,
    LakeError,
    LakeTableConflict,
    UnknownSlot,
)
from spillway.lake.job import check
from spillway.lake.job.check import check_lake
from spillway.lake.job.run import JobSettings
from spillway.lake.state import position


class Client:
    """A service that has one slot, or none."""

    slot: SlotPosition | None = None

    def position(self, name: str) -> SlotPosition:
        if self.slot is None:
            raise UnknownSlot(f'slot "{name}" does not exist')
        return self.slot

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr(check, "connect", lambda _: made)
    return made


def settings(path: Path, **more: Any) -> JobSettings:
    given = {"slot": "s", "checkpoint": path / "c", "table_format": "parquet", **more}
    return JobSettings(path=path, **given)


def slot(confirmed: int = 0x100, name: str = "s") -> SlotPosition:
    return SlotPosition(name, "arrow", "main", "shop", confirmed, confirmed)


def test_nothing_is_made(tmp_path: Path) -> None:
    assert check_lake(settings(tmp_path / "a" / "b")) == []
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_can_not_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LakeError, match="file is no directory") as raised:
        check_lake(settings(tmp_path / "file" / "lake"))
    assert raised.value.hint.startswith("Name a directory")
    check_lake(settings(tmp_path / "directory" / "lake"))


def test_a_place_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests may run as root, who may write everywhere.
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    real = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode: Path(path) != closed and real(path, mode),
    )
    with pytest.raises(LakeError, match="is not for user id") as raised:
        check_lake(settings(closed / "lake"))
    command = raised.value.hint.partition("as root: ")[2].split()
    assert command == ["install", "-d", "-o", str(os.geteuid()), str(closed / "lake")]
    closed.chmod(0o700)
    (closed / "lake").mkdir()
    assert check_lake(settings(closed / "lake")) == []


def test_a_lake_that_is_there(tmp_path: Path, client: Client) -> None:
    position.check(tmp_path, "parquet", slot(), has_checkpoint=False)
    with pytest.raises(LakeTableConflict, match="of a slot that is gone or another one's"):
        check_lake(settings(tmp_path))
    client.slot = slot(name="t")
    with pytest.raises(LakeTableConflict, match="is of slot 's', not 't'"):
        check_lake(settings(tmp_path, slot="t"))
    client.slot = slot(0x200)
    with pytest.raises(LakeBehindSlot):
        check_lake(settings(tmp_path))
    client.slot = slot()
    assert check_lake(settings(tmp_path)) == []
    with pytest.raises(LakeTableConflict, match="table format 'parquet'") as raised:
        check_lake(settings(tmp_path, table_format="delta"))
    assert "path of its own" in raised.value.hint
    assert check_lake(settings(tmp_path / "its own")) == []


def test_what_lies_there_of_others(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "lost+found"):
        (tmp_path / name).mkdir()
    (note,) = check_lake(settings(tmp_path))
    assert note == f"{tmp_path} has other files, which stay: a, b, c and 1 more"
    (tmp_path / "history").mkdir()
    with pytest.raises(LakeTableConflict, match="no lake's of ours"):
        check_lake(settings(tmp_path))


def test_what_spark_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("java") or str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(JavaMissing, match="JAVA_HOME has no java"):
        check_lake(settings(tmp_path / "lake"))
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(JavaMissing, match="no Java 17 or later: openjdk") as raised:
        check_lake(settings(tmp_path / "lake"))
    assert "Java 17" in raised.value.hint
    java.unlink()
    java.symlink_to(real)
    assert check_lake(settings(tmp_path / "lake")) == []
    with pytest.raises(JarsMissing):
        check_lake(settings(tmp_path / "lake", table_format="delta", jars=tmp_path / "jars"))


def test_a_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"table_format": "iceberg", "iceberg_catalog": "prod"}
    with pytest.raises(LakeError, match="the catalog 'prod' can't be asked") as raised:
        check_lake(settings(tmp_path / "lake", **more))
    assert "PYICEBERG_CATALOG__<NAME>__URI" in raised.value.hint
    with pytest.raises(InvalidRequest, match="can't be registered"):
        check_lake(settings(tmp_path / "lake", **more, register_in="glue"))
    monkeypatch.setattr(check.iceberg_catalog, "check_reachable", lambda *_: None)
    assert check_lake(settings(tmp_path / "lake", **more)) == []


def test_a_metastore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check.jars, "verified", lambda *_: [])
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"thrift://127.0.0.1:{server.getsockname()[1]}"
        delta = settings(tmp_path / "lake", table_format="delta", register_in=address)
        assert check_lake(delta) == []
    with pytest.raises(LakeError, match="the metastore does not answer: thrift://"):
        check_lake(delta)


def test_all_that_is_in_the_way_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(JavaMissing, match="2 things are in the way of the lake: ") as raised:
        check_lake(settings(tmp_path / "file" / "lake"))
    assert "is no directory" in raised.value.message
    assert "Java 17" in raised.value.hint
    assert "Name a directory" in raised.value.hint
