"""Found changes on the wire."""

from datetime import datetime
from typing import Any, Final, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from spillway.errors import InvalidOption, InvalidRequest
from spillway.service.model import ChangeQuery, Position
from spillway.slot_manager.json_fields import LsnText, Options, ResponseModel

_OPTION_PREFIX: Final = "options."
_LIMIT: Final = 100


class ChangesQuery(BaseModel):
    """Which changes are asked for; what is not given does not matter."""

    model_config = ConfigDict(extra="forbid")

    source: str = Field(description="The source.", max_length=63)
    database: str = Field(description="The database.", max_length=63)
    table: str = Field(
        default="",
        description="schema.table or table: a name that it has or had in what is retained; of a "
        "partitioned table, all its partitions.",
        examples=["public.orders"],
        max_length=300,
    )
    key: list[str] = Field(
        default_factory=list,
        description="COLUMN=VALUE, with the value as PostgreSQL prints it: rows that have it, or "
        "had it before the change. Several: all of them.",
        examples=[["id=42"]],
        max_length=32,
    )
    op: list[Literal["insert", "update", "delete", "truncate", "message"]] = Field(
        default_factory=list,
        description="Only these operations; message: what pg_logical_emit_message wrote.",
    )
    prefix: str | None = Field(
        default=None,
        description="Only logical messages that have this prefix.",
        max_length=1000,
    )
    xid: int | None = Field(default=None, description="Only of this transaction.", ge=0, lt=1 << 32)
    since: AwareDatetime | None = Field(
        default=None,
        description="Committed then or later. Messages outside of transactions have no time: they "
        "are found without one.",
        examples=["2026-11-22T00:00:00Z"],
    )
    until: AwareDatetime | None = Field(default=None, description="Committed before.")
    from_lsn: LsnText | None = Field(
        default=None, description="The commit record starts here or later."
    )
    upto_lsn: LsnText | None = Field(default=None, description="The commit record starts before.")
    newest_first: bool = Field(default=False, description="The last change first.")
    limit: int = Field(default=_LIMIT, description="Changes of one page.", ge=1, le=1000)
    after: str | None = Field(
        default=None,
        description="Go on behind what this says, the `next` of the page before, with the same "
        "question.",
        max_length=64,
    )

    def query(self) -> ChangeQuery:
        """Give the question.

        Raises:
            InvalidRequest: a part of it can't be.
        """
        return ChangeQuery(
            table=self.table,
            key=parse_key(self.key),
            operations=frozenset(self.op),
            prefix=self.prefix,
            xid=self.xid,
            since=self.since,
            until=self.until,
            from_lsn=self.from_lsn,
            upto_lsn=self.upto_lsn,
            newest_first=self.newest_first,
            limit=self.limit,
            after=None if self.after is None else Position.parse(self.after),
        )


def parse_key(texts: list[str]) -> dict[str, str]:
    """Take COLUMN=VALUE apart.

    Raises:
        InvalidRequest: one is none, or a column is given twice.
    """
    key: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or "\0" in text:
            raise InvalidRequest(
                f"key {text!r} is not COLUMN=VALUE", hint="Write id=42; once for each column."
            )
        if name in key:
            raise InvalidRequest(
                f'column "{name}" is given twice as key', hint="Give each column once."
            )
        key[name] = value
    return key


class PrintQuery(BaseModel):
    """A transaction, and the plugin that is to print it; each plugin option is a parameter
    ``options.NAME=VALUE``.
    """

    model_config = ConfigDict(extra="allow")

    source: str = Field(max_length=63)
    database: str = Field(max_length=63)
    commit_lsn: LsnText = Field(
        description="Where its commit record starts: a change's commit_lsn."
    )
    plugin: str = Field(default="test_decoding", description="The output plugin.", max_length=63)

    @model_validator(mode="after")
    def _check_extra(self) -> Self:
        for name, value in (self.__pydantic_extra__ or {}).items():
            if not name.startswith(_OPTION_PREFIX) or name == _OPTION_PREFIX:
                raise InvalidRequest(
                    f'unknown query parameter "{name}"',
                    hint="The call takes source, database, commit_lsn, plugin and "
                    "options.NAME=VALUE.",
                )
            if not isinstance(value, str):
                raise InvalidOption(
                    f'option "{name.removeprefix(_OPTION_PREFIX)}" is given more than once',
                    hint="Give each option once.",
                )
        return self

    def options(self) -> Options:
        """Give the plugin's options."""
        extra: dict[str, Any] = self.__pydantic_extra__ or {}
        return {name.removeprefix(_OPTION_PREFIX): value for name, value in extra.items()}


class ColumnValueView(ResponseModel):
    """A column of a changed row, before and after; texts are what PostgreSQL prints."""

    name: str
    type: str
    is_key: bool = Field(description="Of the primary key, or else the replica identity.")
    old_is: str = Field(
        description="value, null, unknown (WAL does not say), or none (there was no row)"
    )
    old: str | None = Field(description="Null unless old_is is value.")
    new_is: str
    new: str | None
    changed: bool | None = Field(description="Null: that can't be told.")


class LogicalMessageView(ResponseModel):
    """What pg_logical_emit_message wrote."""

    transactional: bool = Field(
        description="False: it was told at once, whatever became of the transaction around it."
    )
    prefix: str
    content: str | None = Field(description="As text; null: it is not UTF-8.")
    content_hex: str | None = Field(
        description=r"What is not UTF-8, as \x and hexadecimal digits; null: it is text."
    )


class FoundChangeView(ResponseModel):
    """One change of one row, a TRUNCATE of one table, or a logical message."""

    operation: Literal["insert", "update", "delete", "truncate", "message"]
    schema_: str = Field(
        alias="schema",
        description="As it was then, as are the other names. Empty of a message, which is of no "
        "table.",
    )
    table: str
    table_oid: int = Field(description="0 of a message.")
    lsn: LsnText = Field(
        description="Where its record starts; of a message, where it ends, as PostgreSQL tells it."
    )
    commit_lsn: LsnText = Field(
        description="Where its transaction's commit record starts. A slot rewound to here gets the "
        "transaction next. Of a message outside of transactions, where its own record starts."
    )
    commit_end_lsn: LsnText = Field(description="A slot advanced to here is behind it.")
    xid: int
    committed_at: datetime | None = Field(
        description="Null of a message outside of transactions, whose record has no time."
    )
    origin: str | None = Field(description="The replication origin that it came through.")
    columns: list[ColumnValueView]
    position: str = Field(description="Its place: `after` takes it.")
    message: LogicalMessageView | None = Field(description="Null unless the operation is message.")

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)


class UnreadableRange(ResponseModel):
    """A part of the log that is damaged."""

    from_lsn: LsnText
    upto_lsn: LsnText


class ChangesPage(ResponseModel):
    """Changes in the order that was asked for, and where they were looked for."""

    changes: list[FoundChangeView]
    next: str | None = Field(description="Give it as `after` for the next page; null: that is all.")
    tables: list[str] = Field(
        description="The tables that the question means, under the names that they have in what is "
        "retained. Empty, when one was asked for: none of that name has a change there."
    )
    looked_from_lsn: LsnText = Field(
        description="All that commits from here up to looked_upto_lsn was looked at for this page."
    )
    looked_upto_lsn: LsnText
    retained_from_lsn: LsnText = Field(description="What commits before is not retained.")
    retained_from: datetime | None = Field(
        description="When the first transaction was committed that is retained; null: unknown."
    )
    decoded_lsn: LsnText = Field(description="What commits later is not decoded yet.")
    began_earlier: bool = Field(
        description="The question is about a time, or an LSN, before what is retained, too: that "
        "was removed, or was before decoding of the database began."
    )
    timed_out: bool = Field(description="The page ended since its time was over: go on with next.")
    undecided: int = Field(
        description="DELETEs of which it can't be told whether they are of the row: WAL has not "
        "got the columns (REPLICA IDENTITY)."
    )
    unreadable: list[UnreadableRange]
    read_bytes: int = Field(description="Bytes of changes that were read for this page,")
    passed_over_bytes: int = Field(description="and that the index said need not be.")
