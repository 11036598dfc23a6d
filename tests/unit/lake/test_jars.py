"""Pinned jars: what is there is checked, what isn't is said."""

from __future__ import annotations

import hashlib
import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from harness.remedies import remedy
from spillway.errors import JarsMissing, JavaMissing, SparkMissing
from spillway.lake import jars, session

JAR = jars.Jar("org.example", "thing", "1.0", hashlib.sha256(b"content").hexdigest())


@pytest.mark.follows_hint("jars_missing")
def test_a_pinned_jar_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JarsMissing, match=r"thing-1\.0\.jar is not in") as caught:
        jars.verified(tmp_path, (JAR,))
    hint = remedy(caught.value, "jars_missing")
    assert "--format parquet" in hint
    ran = re.search(r"`python -m (spillway\.lake\.jars) ([^`]*)`", hint)
    assert ran is not None
    asked: list[Path] = []
    with monkeypatch.context() as patched:
        patched.setattr(jars, "resolve", lambda folder, _: asked.append(folder) or [])
        assert importlib.import_module(ran[1]).main(shlex.split(ran[2])) == 0
    assert asked == [tmp_path]
    (tmp_path / JAR.file_name).write_bytes(b"other content")
    with pytest.raises(JarsMissing, match="SHA-256 differs") as caught:
        jars.verified(tmp_path, (JAR,))
    assert "Remove it and resolve it again" in remedy(caught.value, "jars_missing")
    (tmp_path / JAR.file_name).unlink()
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


@pytest.mark.follows_hint("java_missing")
def test_java_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="JAVA_HOME has no java"):
        jars.java_command()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="no Java runtime") as caught:
        jars.java_command()
    variable = re.search(r"point (\w+) at one", remedy(caught.value, "java_missing"))
    assert variable is not None
    (tmp_path / "runtime" / "bin").mkdir(parents=True)
    java = tmp_path / "runtime" / "bin" / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv(variable[1], str(tmp_path / "runtime"))
    assert jars.java_command() == str(java)
    monkeypatch.delenv(variable[1])
    java.rename(tmp_path / "java")
    assert jars.java_command() == str(tmp_path / "java")


def test_where_jars_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_JARS", str(tmp_path))
    assert jars.default_folder() == tmp_path
    monkeypatch.delenv("SPILLWAY_JARS")
    monkeypatch.chdir(tmp_path)
    assert jars.default_folder() == tmp_path / ".cache" / "jars"


def test_jars_for_object_stores_are_sets_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[jars.Jar, ...]] = []

    def resolve(_folder: Path, wanted: tuple[jars.Jar, ...]) -> list[Path]:
        asked.append(wanted)
        return []

    monkeypatch.setattr(jars, "resolve", resolve)
    assert jars.main(["--into", str(tmp_path)]) == 0
    assert jars.main(["--into", str(tmp_path), "--with", "s3"]) == 0
    assert jars.main(["--into", str(tmp_path), "--with", "az", "--with", "s3"]) == 0
    both = (*jars.DELTA, *jars.AZURE, *jars.S3)
    assert asked == [jars.DELTA, (*jars.DELTA, *jars.S3), both]
    with pytest.raises(JarsMissing) as caught:
        jars.verified(tmp_path, jars.S3)
    assert "--with s3" in caught.value.hint
    with pytest.raises(JarsMissing, match="hadoop-azure") as caught:
        jars.verified(tmp_path, jars.AZURE)
    assert "--with az" in caught.value.hint
    assert "--format parquet" not in caught.value.hint


@pytest.mark.follows_hint("spark_missing")
def test_without_spark_it_is_said_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(session.util, "find_spec", lambda name: None)
        with pytest.raises(SparkMissing) as caught:
            session.spark_session(table_format="delta", jar_folder=tmp_path)
    extra = re.search(r"pip install '\.\[(\w+)\]'", remedy(caught.value, "spark_missing"))
    assert extra is not None
    # What that extra brings is what was missing; with it the next thing is looked for.
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    assert any(one.startswith("pyspark") for one in extras[extra[1]])
    with pytest.raises((JarsMissing, JavaMissing)):
        session.spark_session(table_format="delta", jar_folder=tmp_path)
