"""Which of Spark's settings may be given to a lake's job, and what the commands make of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from harness.commands import parse_command
from spillway.declarations import spark_settings
from spillway.errors import InvalidRequest
from spillway.lake import session
from spillway.lake.commands.app import app, job_settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spark.sql.shuffle.partitions", "is not NAME=VALUE"),
        ("shuffle.partitions=8", "is no name of a setting"),
        ("spark.a b=1", "is no name of a setting"),
        ("spark.x=a\nb", "printable"),
        ("spark.master=local[4]", "give --master"),
        ("spark.driver.memory=4g", "give --driver-memory"),
        ("spark.sql.ansi.enabled=false", "the job's own: casts"),
        ("spark.hadoop.fs.s3a.secret.key=x", "seen by all users"),
        ("spark.hadoop.fs.s3a.access.key=x", "seen by all users"),
        ("spark.authenticate.secret=x", "seen by all users"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        spark_settings.given([text], "--conf")
    assert said in refused.value.message
    assert refused.value.message.startswith("--conf: ")


def test_what_is_taken() -> None:
    texts = ["spark.sql.shuffle.partitions = 8", "spark.executor.extraJavaOptions=-Da=b -Dc"]
    assert spark_settings.given(texts, "--conf") == {
        "spark.sql.shuffle.partitions": "8",
        "spark.executor.extraJavaOptions": "-Da=b -Dc",
    }
    with pytest.raises(InvalidRequest, match="given twice"):
        spark_settings.given(["spark.a=1", "spark.a=2"], "--conf")


def test_the_job_has_them() -> None:
    words = ["lake", "run", "--slot=s", "--path=/l", "--conf=spark.a=1", "--conf=spark.b=x=y"]
    assert job_settings(parse_command(words))["conf"] == {"spark.a": "1", "spark.b": "x=y"}
    assert job_settings(parse_command(words[:4]))["conf"] == {}


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--slot=s"],
        ["load", "--slot=s", "--source-dsn=host=nowhere"],
        ["verify", "--source-dsn=host=nowhere"],
    ],
)
def test_every_command_refuses_before_it_does_anything(tmp_path: Path, command: list[str]) -> None:
    words = [*command, f"--lake={tmp_path / 'l'}", "--conf=spark.master=x"]
    answer = CliRunner().invoke(app, words)
    assert isinstance(answer.exception, InvalidRequest)
    assert "give --master" in answer.exception.message
    assert not (tmp_path / "l").exists()


def test_what_the_job_relies_on_is_refused() -> None:
    """Of the settings that the session makes, those that it only makes quicker may be others."""
    quicker = {
        "spark.ui.enabled", "spark.ui.showConsoleProgress", "spark.log.level",
        "spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled",
        "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.streaming.metricsEnabled",
        "spark.sql.streaming.pollingDelay", "spark.cleaner.periodicGC.interval",
        "spark.databricks.delta.snapshotPartitions",
    }  # fmt: skip
    made = {*session._SETTINGS, *session._DELTA_SETTINGS}
    assert {name for name in made if not spark_settings.problem(name, "x")} == quicker
