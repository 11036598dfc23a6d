"""Which tables a subscription has: those it names, those that publications publish, or all.

Looked up in the mirrored catalog, as of where decoding is. A partitioned table is its partitions,
for WAL has rows under their names, unless the target has it as one. What is returned is a list to
be stored: it stays until somebody asks for another look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spillway.errors import Conflict, InvalidRequest, NotCaptured, UnknownPublication, UnknownTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spillway.service.interface import EngineInterface
    from spillway.store.rows import SubscriptionRow
    from spillway.subscriber.targets import TargetKind

#: Descriptions of tables are large, and a name is wanted of each.
_TABLES_A_PAGE: Final = 1000


def check_selection(tables: Sequence[str] | None, publications: Sequence[str] | None) -> None:
    """Refuse a selection that contradicts itself, with the field."""
    if tables is not None and publications is not None:
        raise InvalidRequest(
            "tables and publications are both given",
            hint="Give one of them, or neither for all tables.",
            field="tables",
        )
    for field, names in (("tables", tables), ("publications", publications)):
        if names is not None and (not names or len(set(names)) < len(names) or not all(names)):
            raise InvalidRequest(
                f"{field} is empty, or names something twice",
                hint="Leave it out for all tables, or name each once.",
                field=field,
            )


async def resolve(
    engine: EngineInterface, row: SubscriptionRow, kind: TargetKind
) -> tuple[str, ...] | None:
    """Return the tables that *row* stands for now, by name; None: all.

    Raises:
        UnknownTable, UnknownPublication, NotCaptured: with what is named.
        UnsupportedFeature: the kind can't take what a publication publishes.
        Conflict: there are none at present.
        NotReady: the database is not decoded yet.
    """
    if row.publications is not None:
        return await _published(engine, row, kind)
    if row.tables is None:
        return None
    names = await _all_tables(engine, row)
    found: set[str] = set()
    for name in row.tables:
        table = names.get(name)
        if table is None:
            raise UnknownTable(
                f'table {name} does not exist in database "{row.database}"',
                hint="Write schema.table as the catalog has it, without quotes; it must be a "
                "permanent table, and its creation must be decoded: GET "
                f"/v1/sources/{row.source}/tables?database={row.database} lists them.",
                relation=name,
            )
        if not table.captured:
            raise NotCaptured(
                f'source "{row.source}" does not capture table {name}',
                hint="What a source captures is fixed: drop its slots and subscriptions, then the "
                f"source (DELETE /v1/sources/{row.source}), and add it again with a capture that "
                "has the table.",
                relation=name,
            )
        if table.kind == "table":
            found.add(name)
        else:
            found |= {n for n, t in names.items() if t.kind == "table" and name in t.partition_of}
    return _some(_as_target_has(found, names, row, kind), row)


def _as_target_has(
    found: set[str], names: Mapping[str, _Table], row: SubscriptionRow, kind: TargetKind
) -> set[str]:
    """Return tables under the names that the target has them by."""
    return {
        kind.table_of(row.target, name, names[name].partition_of if name in names else ())
        for name in found
    }


class _Table(NamedTuple):
    """What is asked of a table here."""

    kind: str
    captured: bool
    partition_of: tuple[str, ...]


async def _all_tables(engine: EngineInterface, row: SubscriptionRow) -> dict[str, _Table]:
    """Return every table of the database by its name, page by page."""
    names: dict[str, _Table] = {}
    following: int | None = 0
    while following is not None:
        page = await engine.list_tables(row.source, row.database, following, _TABLES_A_PAGE)
        following = page.following
        for table in page.tables:
            names[f"{table.schema}.{table.name}"] = _Table(
                table.kind, table.captured, table.partition_of
            )
    return names


async def _published(
    engine: EngineInterface, row: SubscriptionRow, kind: TargetKind
) -> tuple[str, ...]:
    publications = {p.name: p for p in await engine.list_publications(row.source, row.database)}
    found: set[str] = set()
    for name in row.publications or ():
        publication = publications.get(name)
        if publication is None:
            raise UnknownPublication(
                f'publication "{name}" does not exist in database "{row.database}"',
                hint=f"GET /v1/publications?source={row.source}&database={row.database} lists "
                "those that are there, as of where decoding is.",
                publication=name,
            )
        kind.check_publication(publication)
        found |= {leaf for table in publication.tables for leaf in table.leaves}
    return _some(_as_target_has(found, await _all_tables(engine, row), row, kind), row)


def _some(found: set[str], row: SubscriptionRow) -> tuple[str, ...]:
    """Return the tables in order; there must be one, for none would mean all to a program."""
    if not found:
        raise Conflict(
            f'what subscription "{row.name}" names has no tables at present',
            hint="Add a table to the publication, or a partition to the table, first.",
            subscription=row.name,
        )
    return tuple(sorted(found))
