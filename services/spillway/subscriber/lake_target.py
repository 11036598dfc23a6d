"""The target kind ``lake``: tables in Delta Lake, Iceberg or Parquet, filled by
``spillway lake run``.

The job takes whole committed transactions through the ``arrow`` plugin, whole rows, of all
operations. So what would make fewer of them is refused: row filters, column lists, publications
that leave an operation out, an origin that the source does not leave out itself. Partitions are
lake tables of their own, whatever publish_via_partition_root says, unless the lake's option
``partition_root`` names the table that they are of.

One job a subscription, with a JVM of its own: jobs don't take each other along, and each has its
memory and its log.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spillway.declarations.lake_options import LAKE_OPTIONS
from spillway.declarations.tables import ALL
from spillway.errors import InvalidRequest, UnsupportedFeature
from spillway.storage.object_stores import KINDS
from spillway.subscriber.lake_options import (
    arguments,
    check_options,
    choice,
    fixed_options,
    insist,
    text,
)
from spillway.subscriber.targets import Program, RunPlan, TableAction, TargetKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from spillway.service.model import PublicationInfo
    from spillway.subscriber.model import SubscriptionSpec

_FORMATS: Final = ("delta", "iceberg", "parquet")


class LakeTarget(TargetKind):
    """See the module."""

    plugin: ClassVar[str] = "arrow"
    #: Its place may be mounted, or its Java installed, when it is enabled.
    checks_disabled: ClassVar[bool] = False

    def check(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return the target with its format; what is null is left out."""
        given = {name: value for name, value in target.items() if value is not None}
        options = [option.name for option in LAKE_OPTIONS]
        for name in given:
            if name not in {"kind", "format", "path", *options}:
                raise InvalidRequest(
                    f'a lake has no field "{name}"',
                    hint=f"It has format, path, {', '.join(options)}.",
                    field=f"target.{name}",
                )
        table_format = given.setdefault("format", "delta")
        insist("format", table_format, choice(*_FORMATS))
        path = given.get("path")
        insist("path", path, text)
        if not str(path).startswith(("/", *(f"{scheme}://" for scheme in KINDS))):
            raise InvalidRequest(
                f"the lake's path {path!r} is relative, and to what is not said",
                hint="Give an absolute path of the service's machine, s3://bucket/prefix or "
                "az://container/prefix.",
                field="target.path",
            )
        _check_place(table_format, str(path), in_catalog="iceberg_catalog" in given)
        check_options(given)
        return given

    def check_subscription(self, spec: SubscriptionSpec, *, only_local: bool) -> None:
        """Refuse parts of transactions, prepared ones, and an origin that is not left out
        before.
        """
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
                hint=f'What a source captures is fixed: drop source "{spec.source}", with its '
                'slots, and create it again with capture {"origin": "none"}, which leaves them out '
                "for all its slots.",
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

    def table_of(self, target: Mapping[str, Any], table: str, above: Sequence[str]) -> str:
        """Return the topmost partitioned table that is one in the lake."""
        roots = target.get("partition_root") or ()
        return next((each for each in reversed(above) if each in roots or ALL in roots), table)

    def fixed(self, target: Mapping[str, Any]) -> Mapping[str, object]:
        """Return how history is partitioned, which is never written anew, and where Iceberg's
        tables are registered.
        """
        return fixed_options(target)

    def program(self, plan: RunPlan) -> Program:
        """Return the job's command line, and the DSN beside it."""
        target = plan.target
        words = [
            sys.executable, "-m", "spillway.cli", "lake", "run", "--trigger=continuous",
            f"--slot={plan.slot}",
            f"--path={target['path']}", f"--format={target['format']}", f"--grpc={plan.grpc}",
            f"--status-file={plan.status_file}",
        ]  # fmt: skip
        words += [f"--table={table}" for table in plan.tables or ()]
        if plan.skip_lsn is not None:
            words.append(f"--skip-to={plan.skip_lsn}")
        words += arguments(target)
        if plan.copy_data:
            words.append("--initial-load")
        # Tables may be asked for anew, too.
        return Program(tuple(words), {"SPILLWAY_LAKE_SOURCE_DSN": plan.dsn})

    def check_program(self, plan: RunPlan) -> Program:
        """Return what looks whether the lake can be filled."""
        target = plan.target
        words = [
            sys.executable, "-m", "spillway.cli", "lake", "check", f"--slot={plan.slot}",
            f"--path={target['path']}", f"--format={target['format']}", f"--grpc={plan.grpc}",
        ]  # fmt: skip
        return Program((*words, *arguments(target)))

    def table_program(self, plan: RunPlan, table: str, action: TableAction) -> Program:
        """Return the command that sets the table aside, or has it come back, with the job's next
        batch, or asks the job to load it anew.
        """
        words = [sys.executable, "-m", "spillway.cli", "lake", action.value]
        return Program((*words, f"--path={plan.target['path']}", f"--table={table}"))

    def verify_program(self, plan: RunPlan, tables: Sequence[str], outcome: Path) -> Program:
        """Return the command that compares the lake with the source, which reads both."""
        own = ("master", "driver_memory", "conf")
        words = [
            sys.executable, "-m", "spillway.cli", "lake", "verify",
            f"--path={plan.target['path']}", f"--grpc={plan.grpc}", f"--outcome={outcome}",
            *arguments({name: plan.target[name] for name in own if name in plan.target}),
        ]  # fmt: skip
        words += [f"--table={table}" for table in tables]
        return Program(tuple(words), {"SPILLWAY_LAKE_SOURCE_DSN": plan.dsn})


def _check_place(table_format: str, path: str, *, in_catalog: bool) -> None:
    """Refuse formats that need what such a place hasn't."""
    in_bucket = not path.startswith("/")
    if table_format == "parquet" and in_bucket:
        raise UnsupportedFeature(
            f"a lake of parquet can't be at {path}: its commits are a directory's",
            hint='Give format "delta", or "iceberg" on S3, or a directory.',
            field="target.format",
        )
    if table_format == "iceberg" and in_bucket and not path.startswith(("s3://", "s3a://")):
        raise UnsupportedFeature(
            f"a lake of iceberg can't be at {path}: of object storage, it takes S3",
            hint='Give format "delta", or a bucket of S3 or of what speaks its protocol.',
            field="target.format",
        )
    if table_format == "iceberg" and in_bucket and not in_catalog:
        raise InvalidRequest(
            f"a lake of iceberg at {path} needs a catalog that is named: a bucket can't have a "
            "database",
            hint="Name one of PyIceberg's configuration in iceberg_catalog; for a lake that is "
            "there, the one that it is in.",
            field="target.iceberg_catalog",
        )
    if table_format == "iceberg" and not in_bucket and "?" in path:
        raise InvalidRequest(
            f"a lake of iceberg can't be at {path}: its catalog's database is named by a URL",
            hint="Name a directory without a question mark.",
            field="target.path",
        )


def _partial(publication: PublicationInfo, what: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f'publication "{publication.name}" {what}, and a lake takes whole tables',
        hint="Name tables instead, or make a publication without that for the lake.",
        publication=publication.name,
    )
