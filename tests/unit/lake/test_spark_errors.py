"""What a command says when Spark fails."""

from __future__ import annotations

from spillway.errors import InvalidLsn, LakeError, SpillwayError, StorageError, WalGap
from spillway.lake.worker_failures import errors as spark_errors


def typed_error(error: Exception) -> SpillwayError:
    return spark_errors.typed_error(error, what="the job failed", hint="Run it again.", slot="s")


def test_a_worker_s_error_is_typed() -> None:
    text = (
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker.\n"
        "Traceback (most recent call last):\n"
        '  File "parse.py", line 1, in parse_stretch\n'
        "spillway.errors.StorageError: 00000001.snap can't be read: gone (Every worker must see "
        "it.)\n"
    )
    error = typed_error(RuntimeError(text))
    assert type(error) is StorageError
    assert error.message == "00000001.snap can't be read: gone (Every worker must see it.)"
    assert error.hint == "Run it again."
    assert error.details == {"slot": "s"}


def test_a_kind_that_makes_its_message_and_a_line_that_begins_otherwise() -> None:
    error = typed_error(RuntimeError("[X] Python: spillway.errors.InvalidLsn: invalid LSN: 'x'"))
    assert type(error) is InvalidLsn
    assert error.message == "invalid LSN: 'x'"


def test_others_are_lake_errors() -> None:
    gap = WalGap("a segment is missing")
    assert typed_error(gap) is gap
    assert "out of memory" in typed_error(RuntimeError("java: out of memory\n at x")).message
    assert type(typed_error(RuntimeError("spillway.errors.Nothing: x"))) is LakeError
    assert type(typed_error(RuntimeError(""))) is LakeError


def test_java_s_innermost_cause_is_told() -> None:
    """A disk that is full is in none of the lines before it."""
    text = (
        "An error occurred while calling o37494.sql.\n"
        ": org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows.\n"
        "\tat org.apache.spark.sql.X.y(X.scala:1)\n"
        "Caused by: org.apache.spark.SparkException: Job aborted\n"
        "\tat org.apache.spark.sql.X.y(X.scala:2)\n"
        "Caused by: java.io.IOException: No space left on device\n"
        "\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)\n"
    )
    message = typed_error(RuntimeError(text)).message
    assert message == (
        "the job failed: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while "
        "writing rows.: No space left on device"
    )
    plain = "An error occurred while calling z:org.X.y.\n: java.lang.NullPointerException\n\tat x"
    assert (
        typed_error(RuntimeError(plain)).message == "the job failed: java.lang.NullPointerException"
    )
