"""A lake's options: what a subscription's target of kind ``lake`` may say of how its job runs.

Each is an option of ``spillway lake run`` and, where it has words of its own on a form, of
``spillway subscription create``; the others are given there as ``--job-option``. Made from this
table are those options, REST's ``LakeTarget``, the forms, what the service checks before a job is
started, the words of the job's command line, the provider's ``target`` and the table in
docs/reference/rest.md.

What an option does is the job's business: ``spillway lake run`` hands its value to the field of
``JobSettings`` that has its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

#: What a value is: a text that may stand on a command line; one of ``choices``; a number; a time as
#: 12h; a size as 2g; texts by ``schema.table``, which are columns, what partitions are made of, or
#: what becomes of columns; tables; times by ``schema.table``, or all; Spark's settings, texts by
#: name.
Kind = Literal[
    "text", "choice", "whole number", "number", "time", "size", "columns", "partitions", "masks",
    "tables", "times", "settings",
]  # fmt: skip
BY_TABLE: Final = frozenset({"columns", "partitions", "masks"})
#: Those that have several lines on a form, and may be repeated on a command line.
SEVERAL: Final = BY_TABLE | {"settings", "tables", "times"}
NUMBERS: Final = frozenset({"whole number", "number"})

_FORMATS: Final = {"delta": "Delta", "iceberg": "Iceberg", "parquet": "Parquet"}


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of its own on a page; options without one are lines ``name = value`` of one field."""

    label: str
    hint: str
    placeholder: str = ""
    #: of a choice: the values that are offered and their names, "" among them; empty: all
    offered: tuple[tuple[str, str], ...] = ()
    #: how a line of it is called that can't be read
    lines_of: str = ""
    #: in the form that alters, where by-table fields are shown again
    altered_hint: str = ""


@dataclass(frozen=True, slots=True)
class LakeOption:
    """An option; all but its name and its kind is for those who read or check it."""

    name: str
    kind: Kind
    #: what it is, for a target; of an option that not all formats have, behind their names
    meaning: str
    #: the same for the commands, where that needs other words
    help: str = ""
    #: the formats that have it; empty: all
    formats: tuple[str, ...] = ()
    #: what the job does without it, as its command line would have it; None: nothing is said
    default: str | float | None = None
    #: its option of ``spillway lake run``; "": made of its name
    flag: str = ""
    choices: tuple[str, ...] = ()
    #: bounds of a number in a target; a command line's whole numbers have them, too
    least: float = 0
    most: float | None = None
    #: a good value, for those who need one to look at
    example: Any = None
    #: what stands for it in help; "": what its kind has
    metavar: str = ""
    form: FormField | None = None
    #: it says how the first tables are made, and can't change once the lake is filled
    fixed: bool = False
    #: of a fixed one: the value that means the same as none
    absent: str | None = None

    @property
    def option(self) -> str:
        """Its option of ``spillway lake run``."""
        return self.flag or f"--{self.name.replace('_', '-')}"

    @property
    def format_name(self) -> str:
        """The formats that have it, as a person writes them."""
        return " and ".join(_FORMATS[each] for each in self.formats)

    def is_of(self, table_format: str) -> bool:
        """Say whether lakes in a format have it."""
        return not self.formats or table_format in self.formats

    @property
    def description(self) -> str:
        """What it is, with all that is to be known of a value."""
        parts = [self.meaning]
        if self.fixed:
            parts.append("Can't change once the lake is filled.")
        if self.kind == "time":
            parts.append("A number with s, m, h, d or w: 12h for one.")
        return self._of_format(" ".join(parts))

    @property
    def command_help(self) -> str:
        """What the commands say of it."""
        return self._of_format(self.help or self.meaning)

    @property
    def offered(self) -> tuple[tuple[str, str], ...]:
        """The values that a form offers, and how they are called there."""
        if self.form is not None and self.form.offered:
            return self.form.offered
        return (("", "as ever"), *((value, value) for value in self.choices))

    def _of_format(self, text: str) -> str:
        return f"{self.format_name}: {text}" if self.formats else text


LAKE_OPTIONS: Final[tuple[LakeOption, ...]] = (
    LakeOption(
        "partition_history",
        "choice",
        "what of their commit's time histories are partitioned by.",
        help="partition the histories that are made by day, month or year of their commits; or "
        "none.",
        formats=("delta",),
        choices=("day", "month", "year", "none"),
        example="day",
        metavar="UNIT",
        form=FormField(
            "Partition histories",
            "By the time of their changes' commits. It stays so.",
            offered=(
                ("", "not at all"),
                ("day", "by day"),
                ("month", "by month"),
                ("year", "by year"),
            ),
        ),
        fixed=True,
        absent="none",
    ),
    LakeOption(
        "partition_by",
        "partitions",
        "what current tables are partitioned by, by schema.table: columns, or day(column), "
        "month(column), year(column) of times; an empty list: nothing. Counts for tables that are "
        "made; one that is there must be loaded anew first, or the job ends with "
        "`lake_table_conflict`.",
        help="what a current table is partitioned by: columns, or day(column), month(column), "
        "year(column) of times; may be repeated.",
        formats=("delta",),
        example={"public.orders": ["day(created_at)", "region"]},
        form=FormField(
            "Partition current tables",
            "A table a line. Columns, or day(), month(), year() of a time. A table stays as it is "
            "made.",
            placeholder="public.orders = month(created_at), region",
            lines_of="the partitions",
            altered_hint="A table a line. One that is there must be loaded anew first.",
        ),
    ),
    LakeOption(
        "cluster_by",
        "columns",
        "columns by which maintenance brings a current table's rows together, by schema.table; an "
        "empty list: none. A table that is left out stays as it was.",
        help="columns by which maintenance brings a current table's rows together; may be "
        "repeated.",
        formats=("delta",),
        example={"public.orders": ["customer_id"]},
        form=FormField(
            "Cluster current tables",
            "A table a line. Maintenance brings rows that are near each other in these columns "
            "into the same files.",
            placeholder="public.orders = customer_id",
            lines_of="the clusters",
            altered_hint="A table a line; without columns it is no longer clustered.",
        ),
    ),
    LakeOption(
        "iceberg_catalog",
        "text",
        "the catalog for the tables, as PyIceberg's configuration on the service's machine names "
        "it; one of the lake's own by default, which a bucket can't have.",
        help="the catalog for the tables, as PyIceberg's configuration on the job's machine names "
        "it; one of the lake's own unless given, which a lake on S3 can't have.",
        formats=("iceberg",),
        example="prod",
        form=FormField(
            "Catalog",
            "As PyIceberg's configuration on the service's machine names it; one of the lake's "
            "own if empty.",
        ),
        fixed=True,
    ),
    LakeOption(
        "iceberg_prefix",
        "text",
        "before each namespace, in a catalog that has other tables, too.",
        formats=("iceberg",),
        example="shop_",
        form=FormField(
            "Prefix of namespaces",
            "Where the catalog has other tables, too.",
            placeholder="shop_",
        ),
        fixed=True,
    ),
    LakeOption(
        "iceberg_location",
        "choice",
        "who says where the tables' files lie: lake, below its path; or catalog, where it puts "
        "tables of which that is not said, on the lake's kind of storage.",
        formats=("iceberg",),
        choices=("lake", "catalog"),
        default="lake",
        example="catalog",
        fixed=True,
    ),
    LakeOption(
        "register_in",
        "text",
        "the catalog in which tables are registered when they are made: thrift://host:9083, a "
        "Hive metastore's address, or glue.",
        formats=("delta",),
        example="thrift://127.0.0.1:9083",
        form=FormField(
            "Register tables in",
            "A Hive metastore's thrift://host:9083, or glue. Others find tables there as "
            "shop.orders.",
            placeholder="thrift://metastore:9083",
        ),
    ),
    LakeOption(
        "register_prefix",
        "text",
        "before each database's name, in a catalog that has others, too.",
        formats=("delta",),
        example="lake_",
    ),
    LakeOption(
        "partition_root",
        "tables",
        "Partitioned tables that are one table each in the lake, as schema.table; all: every one. "
        "What was named once stays so.",
        help="A partitioned table that is one table in the lake, or all; may be repeated.",
        example=["public.measurements"],
        form=FormField(
            "Partitioned tables that are one",
            "A table a line, or all. Others are their partitions.",
            placeholder="public.measurements",
            lines_of="partitioned tables",
            altered_hint="A table a line. What was named once stays one.",
        ),
    ),
    LakeOption(
        "mask",
        "masks",
        "Columns that the lake doesn't get as they are, by schema.table: out(column) is left out, "
        "null(column) null, constant(column:text) that text, hash(column) a keyed hash, with the "
        "secret in SPILLWAY_LAKE_MASK_SECRET; an empty list: none any more. A table that is left "
        "out stays as it was.",
        help="What a table's columns are masked with: out(column), null(column), hash(column), "
        "constant(column:text); may be repeated.",
        example={"public.customers": ["hash(email)", "out(photo)"]},
        form=FormField(
            "Masked columns",
            "A table a line: out(), null(), hash() of a column, constant(column:text).",
            placeholder="public.customers = hash(email), out(photo)",
            lines_of="the masks",
            altered_hint="A table a line; a table that the lake has must be loaded anew.",
        ),
    ),
    LakeOption(
        "soft_deletes",
        "tables",
        "Tables whose deleted rows stay in current, with _deleted_at, as schema.table; all: every "
        "one. What was named once stays so.",
        help="A table whose deleted rows stay in current, with _deleted_at, or all; may be "
        "repeated.",
        example=["public.orders"],
        form=FormField(
            "Tables whose deleted rows stay",
            "A table a line, or all. Rows that are gone have the time in _deleted_at.",
            placeholder="public.orders",
            lines_of="the tables",
            altered_hint="A table a line. What was named once stays so.",
        ),
    ),
    LakeOption(
        "column_names",
        "choice",
        "Names of columns: the source's, or letters, digits and underscores only, which every "
        "reader takes and which need no column mapping. It stays as it was said last, else as the "
        "slot's option of that name says.",
        help="Names of columns: the source's, or letters, digits and underscores only. As it was "
        "said last, else as the slot's option says.",
        choices=("safe", "source"),
        example="safe",
    ),
    LakeOption(
        "on_schema_change",
        "choice",
        "Where a table's columns change: follow, stop before, or set it aside.",
        help="Where a table's columns change, or it is created again: follow, stop before, or set "
        "it aside.",
        choices=("evolve", "pause", "quarantine"),
        default="evolve",
        example="pause",
    ),
    LakeOption(
        "merge",
        "choice",
        "how changes come into current tables that aren't small: copy writes the files anew that "
        "have changed rows; position marks the rows, in deletion vectors or position deletes, and "
        "appends the new ones.",
        formats=("delta", "iceberg"),
        choices=("copy", "position"),
        default="copy",
        example="position",
    ),
    LakeOption(
        "merge_interval",
        "times",
        "The least time between two merges of a current table, by schema.table, or all: each goes "
        "at its own pace, beside the batches, which append to its history; LSNs at which all "
        "tables agree come as the slowest goes. 0s, and without it: with each batch.",
        help="TABLE=TIME, or all=TIME: the least time between two merges of a current table, which "
        "is brought up to date beside the batches then; may be repeated. 0s: with each batch.",
        example={"all": "1m", "public.orders": "0s"},
        form=FormField(
            "Tables at their own pace",
            "A table a line, or all, with a time. Its current table is merged so often, and no "
            "other one waits for it.",
            placeholder="public.measurements = 5m",
            lines_of="the tables' times",
            altered_hint="A table a line, or all, with a time; what is left out is merged with "
            "each batch.",
        ),
    ),
    LakeOption(
        "interval_s",
        "number",
        "Least seconds between two batches.",
        help="Continuous: least seconds between two batches.",
        flag="--interval",
        default=1.0,
        least=0.1,
        example=2.5,
    ),
    LakeOption(
        "max_bytes_per_batch",
        "whole number",
        "Bytes of WAL that one batch spans.",
        default=256 << 20,
        least=1,
        example=64 << 20,
    ),
    LakeOption(
        "maintenance_interval",
        "time",
        "Between two rounds of compaction; 0s: none.",
        help="Delta, Iceberg: between two rounds of compaction and removal of what is not kept; "
        "0s: none.",
        default="1h",
        example="2h",
    ),
    LakeOption(
        "retention",
        "time",
        "How far back readers may pin an LSN.",
        help="Delta, Iceberg: how far back readers may pin an LSN, 7d or 12h for one; what only "
        "older versions need is removed.",
        default="7d",
        example="7d",
    ),
    LakeOption(
        "history_retention",
        "time",
        "How long changes stay in history; for ever by default.",
        help="Delta, Iceberg: how long changes stay in history; for ever unless given.",
        example="90d",
    ),
    LakeOption(
        "driver_memory",
        "size",
        "Heap of the job's JVM.",
        help="Heap of Spark's JVM.",
        default="2g",
        example="2g",
    ),
    LakeOption(
        "conf",
        "settings",
        "Further settings of Spark's, by name; those that the job sets itself, and secrets, are "
        "refused.",
        help="A further setting of Spark's; may be repeated. Those that the job sets itself are "
        "refused.",
        example={"spark.sql.shuffle.partitions": "8"},
        form=FormField(
            "Spark's settings",
            "One a line. What the job sets itself is refused, and so are secrets.",
            placeholder="spark.sql.shuffle.partitions = 8",
            lines_of="Spark's settings",
            altered_hint="One a line; what is left out is as Spark has it.",
        ),
    ),
    LakeOption("master", "text", "Spark's master.", default="local[*]", example="local[*]"),
    LakeOption(
        "metrics_port",
        "whole number",
        "Serve the job's own Prometheus metrics on this loopback port.",
        help="Serve Prometheus metrics on this port; 0: on a free one.",
        most=65535,
        example=0,
    ),
)


def lake_option(name: str) -> LakeOption:
    """Return the option of that name."""
    return next(option for option in LAKE_OPTIONS if option.name == name)


def form_options() -> tuple[LakeOption, ...]:
    """Return those that have words of their own on a form, and an option of the commands."""
    return tuple(option for option in LAKE_OPTIONS if option.form is not None)


def job_options() -> tuple[LakeOption, ...]:
    """Return the others, which are given by name and value."""
    return tuple(option for option in LAKE_OPTIONS if option.form is None)
