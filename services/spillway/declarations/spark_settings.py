"""What may be said of a lake job's Spark beside its own options: ``--conf NAME=VALUE``.

Spark's settings are the user's, except for those that the job sets because its tables would be
wrong otherwise, those that have an option of their own, and secrets, which a command line shows to
every user of the machine.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from spillway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME: Final = re.compile(r"spark\.[\w.$-]+")
#: As Spark itself recognises what it must not show (spark.redaction.regex), and a bit more.
_SECRET: Final = re.compile(r"secret|password|token|access[._-]?key|passphrase", re.IGNORECASE)
_VALUE_MAX: Final = 4096

#: What the job sets itself, and why, or what to give instead.
_OWN: Final = {
    "spark.master": "give --master",
    "spark.driver.memory": "give --driver-memory",
    "spark.jars": "the job puts its own jars there; give spark.jars.packages or spark.driver."
    "extraClassPath",
    "spark.sql.session.timeZone": "times in the lake are in UTC",
    "spark.sql.ansi.enabled": "casts of the lake's rows must fail, and never give null",
    "spark.sql.caseSensitive": "the lake's names differ by more than case",
    "spark.sql.parquet.outputTimestampType": "other readers don't take INT96",
    "spark.sql.execution.arrow.pyspark.enabled": "rows go to Python in Arrow's form",
    "spark.sql.extensions": "Delta Lake's are the job's to name",
    "spark.sql.catalog.spark_catalog": "Delta Lake's is the job's to name",
    "spark.databricks.delta.merge.materializeSource": "merges rely on it",
}


def given(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse NAME=VALUE, as *option* of a command is given.

    Raises:
        InvalidRequest: one is none, is named twice, or can't be given.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        told = problem(name, value) if equals else f"{text!r} is not NAME=VALUE"
        if not told and name in found:
            told = f"{name} is given twice"
        if told:
            raise InvalidRequest(
                f"{option}: {told}",
                hint=f"Write {option} spark.sql.shuffle.partitions=8, for one; each name once.",
            )
        found[name] = value
    return found


def problem(name: str, value: object) -> str:
    """Say why a setting can't be given; "" for one that can."""
    if not _NAME.fullmatch(name):
        return f"{name!r} is no name of a setting such as spark.sql.shuffle.partitions"
    if not isinstance(value, str) or not value.isprintable() or len(value) > _VALUE_MAX:
        return f"{name} must be a text of at most {_VALUE_MAX} printable characters"
    if why := _OWN.get(name):
        return f"{name} is the job's own: {why}"
    if _SECRET.search(name):
        return (
            f"{name} would be seen by all users of the machine: put it into spark-defaults."
            "conf, or the environment"
        )
    return ""
