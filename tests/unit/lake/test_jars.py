"""Pinned jars: what is there is checked, what isn't is said."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from spillway.errors import JarsMissing, JavaMissing
from spillway.lake import jars

if TYPE_CHECKING:
    from pathlib import Path

JAR = jars.Jar("org.example", "thing", "1.0", hashlib.sha256(b"content").hexdigest())


def test_a_pinned_jar_is_checked(tmp_path: Path) -> None:
    with pytest.raises(JarsMissing, match=r"thing-1\.0\.jar is not in") as caught:
        jars.verified(tmp_path, (JAR,))
    assert "--format parquet" in caught.value.hint
    (tmp_path / JAR.file_name).write_bytes(b"other content")
    with pytest.raises(JarsMissing, match="SHA-256 differs"):
        jars.verified(tmp_path, (JAR,))
    (tmp_path / JAR.file_name).write_bytes(b"content")
    assert jars.verified(tmp_path, (JAR,)) == [tmp_path / JAR.file_name]
    assert jars.resolve(tmp_path, (JAR,)) == [tmp_path / JAR.file_name]


def test_nothing_can_be_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_run_ivy", lambda *_: "module not found")
    monkeypatch.setattr(jars, "_run_maven", lambda *_: "not installed")
    with pytest.raises(JarsMissing, match="ivy: module not found; mvn: not installed"):
        jars.resolve(tmp_path, (JAR,))
    assert list(tmp_path.iterdir()) == []


def test_what_a_resolver_brings_is_checked_before_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring(_scratch: Path, into: Path, wanted: tuple[jars.Jar, ...]) -> None:
        for jar in wanted:
            (into / jar.file_name).write_bytes(b"something else")

    monkeypatch.setattr(jars, "_run_ivy", bring)
    with pytest.raises(JarsMissing, match="SHA-256 differs"):
        jars.resolve(tmp_path, (JAR,))
    assert list(tmp_path.iterdir()) == []


def test_java_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="JAVA_HOME has no java"):
        jars.java_command()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="no Java runtime"):
        jars.java_command()


def test_where_jars_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_JARS", str(tmp_path))
    assert jars.default_folder() == tmp_path
    monkeypatch.delenv("SPILLWAY_JARS")
    monkeypatch.chdir(tmp_path)
    assert jars.default_folder() == tmp_path / ".cache" / "jars"


def test_jars_for_s3_are_a_set_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[jars.Jar, ...]] = []

    def resolve(_folder: Path, wanted: tuple[jars.Jar, ...]) -> list[Path]:
        asked.append(wanted)
        return []

    monkeypatch.setattr(jars, "resolve", resolve)
    assert jars.main(["--into", str(tmp_path)]) == 0
    assert jars.main(["--into", str(tmp_path), "--with", "s3"]) == 0
    assert asked == [jars.DELTA, (*jars.DELTA, *jars.S3)]
    with pytest.raises(JarsMissing) as caught:
        jars.verified(tmp_path, jars.S3)
    assert "--with s3" in caught.value.hint
    assert "--format parquet" not in caught.value.hint
