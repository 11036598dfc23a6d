"""The target kind ``lake``: tables in Delta Lake or Parquet, filled by ``spillway lake run``.

The job takes whole committed transactions through the ``arrow`` plugin, whole rows, of all operations. So what would make fewer of
them is refused: row filters, column lists, publications that leave an operation out, an origin that the source does not leave out
itself. Partitions are lake tables of their own, whatever publish_via_partition_root says: WAL has their rows under their names.

One job a subscription, with a JVM of its own: jobs don't take each other along, and each has its memory and its log.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spillway.errors import InvalidRequest, UnsupportedFeature
from spillway.subscriber.targets import Program, RunPlan, TargetKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spillway.engine.model import PublicationInfo
    from spillway.subscriber.model import SubscriptionSpec

_FORMATS: Final = ("delta", "iceberg", "parquet")
_POLICIES: Final = ("evolve", "pause", "quarantine")
_DURATION: Final = re.compile(r"[0-9]{1,9}[smhdw]")
_MEMORY: Final = re.compile(r"[1-9][0-9]{0,6}[kmgKMG]")
_TEXT_MAX: Final = 4096


def _choice(*known: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        return "" if value in known else f"one of {', '.join(known)}"

    return check


def _pattern(pattern: re.Pattern[str], example: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        return "" if isinstance(value, str) and pattern.fullmatch(value) else example

    return check


def _number(least: float) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        good = isinstance(value, int | float) and not isinstance(value, bool) and value >= least
        return "" if good else f"a number, {least:g} or more"

    return check


def _text(value: Any) -> str:
    good = isinstance(value, str) and 0 < len(value) <= _TEXT_MAX and value.isprintable()
    return "" if good else f"a text of at most {_TEXT_MAX} characters"


#: How the job runs: the field, its option of ``spillway lake run``, and what says what it may be; "" for a good value.
_JOB_OPTIONS: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "on_schema_change": ("--on-schema-change", _choice(*_POLICIES)),
    "interval_s": ("--interval", _number(0.1)),
    "max_bytes_per_batch": ("--max-bytes-per-batch", _number(1)),
    "maintenance_interval": ("--maintenance-interval", _pattern(_DURATION, "a time such as 1h")),
    "retention": ("--retention", _pattern(_DURATION, "a time such as 7d")),
    "history_retention": ("--history-retention", _pattern(_DURATION, "a time such as 90d")),
    "driver_memory": ("--driver-memory", _pattern(_MEMORY, "a size such as 2g")),
    "master": ("--master", _text),
    "metrics_port": ("--metrics-port", _number(0)),
}


class LakeTarget(TargetKind):
    """See the module."""

    plugin: ClassVar[str] = "arrow"

    def check(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return the target with its format; what is null is left out."""
        given = {name: value for name, value in target.items() if value is not None}
        for name in given:
            if name not in {"kind", "format", "path", *_JOB_OPTIONS}:
                raise InvalidRequest(
                    f'a lake has no field "{name}"',
                    hint=f"It has format, path, {', '.join(_JOB_OPTIONS)}.",
                    field=f"target.{name}",
                )
        table_format = given.setdefault("format", "delta")
        _insist("format", table_format, _choice(*_FORMATS))
        path = given.get("path")
        _insist("path", path, _text)
        if not str(path).startswith(("/", "s3://", "s3a://")):
            raise InvalidRequest(
                f"the lake's path {path!r} is relative, and to what is not said",
                hint="Give an absolute path of the service's machine, or s3://bucket/prefix.",
                field="target.path",
            )
        for name, (_, check) in _JOB_OPTIONS.items():
            if name in given:
                _insist(name, given[name], check)
        return given

    def check_subscription(self, spec: SubscriptionSpec, *, only_local: bool) -> None:
        """Refuse parts of transactions, prepared ones, and an origin that is not left out before."""
        if spec.streaming != "off":
            raise UnsupportedFeature(
                f'a lake takes no transactions in progress: streaming is "{spec.streaming}"',
                hint='Leave streaming out, or give "off".',
                field="streaming",
            )
        if spec.two_phase:
            raise UnsupportedFeature(
                "a lake takes transactions when they are committed, not when they are prepared",
                hint="Leave two_phase out, or give false.",
                field="two_phase",
            )
        if spec.origin == "none" and not only_local:
            raise UnsupportedFeature(
                "a lake can't tell changes with a replication origin from others",
                hint=f'Create source "{spec.source}" with capture {{"origin": "none"}}, which leaves them out for all '
                "its slots.",
                field="origin",
            )

    def check_publication(self, publication: PublicationInfo) -> None:
        """Refuse what publishes less than whole tables."""
        left_out = [
            name
            for name, sent in (
                ("insert", publication.insert),
                ("update", publication.update),
                ("delete", publication.delete),
                ("truncate", publication.truncate),
            )
            if not sent
        ]
        if left_out:
            raise _partial(publication, f"leaves out {', '.join(left_out)}")
        for table in publication.tables:
            name = f"{table.schema}.{table.name}"
            if table.has_row_filter:
                raise _partial(publication, f"has a row filter on {name}")
            if table.columns is not None:
                raise _partial(publication, f"has a column list on {name}")

    def place(self, target: Mapping[str, Any]) -> object:
        """Return format and path."""
        return target["format"], target["path"]

    def program(self, plan: RunPlan) -> Program:
        """Return the job's command line, and the DSN beside it."""
        target = plan.target
        arguments = [
            sys.executable, "-m", "spillway.cli", "lake", "run", "--trigger=continuous", f"--slot={plan.slot}",
            f"--path={target['path']}", f"--format={target['format']}", f"--grpc={plan.grpc}",
            f"--status-file={plan.status_file}",
        ]  # fmt: skip
        arguments += [f"--table={table}" for table in plan.tables or ()]
        if plan.skip_lsn is not None:
            arguments.append(f"--skip-to={plan.skip_lsn}")
        arguments += [
            f"{option}={target[name]}"
            for name, (option, _) in _JOB_OPTIONS.items()
            if name in target
        ]
        if not plan.copy_data:
            return Program(tuple(arguments))
        arguments.append("--initial-load")
        return Program(tuple(arguments), {"SPILLWAY_LAKE_SOURCE_DSN": plan.dsn})


def _insist(name: str, value: Any, check: Callable[[Any], str]) -> None:
    if wanted := check(value):
        raise InvalidRequest(
            f"the lake's {name} is {value!r}, and must be {wanted}",
            hint="See the how-to on subscriptions.",
            field=f"target.{name}",
        )


def _partial(publication: PublicationInfo, what: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f'publication "{publication.name}" {what}, and a lake takes whole tables',
        hint="Name tables instead, or make a publication without that for the lake.",
        publication=publication.name,
    )
