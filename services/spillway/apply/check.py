"""Whether a target can be filled, looked at before a subscription is made: everything that is
missing is said at once, and nothing is changed there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from spillway.apply.conflicts.rules import ConflictRules
from spillway.apply.settings import target_plan
from spillway.apply.sync.published import PublishedTable, describe, list_tables
from spillway.apply.tables.matching import match_all
from spillway.apply.target.connection import connect_target
from spillway.apply.target.facts import ask
from spillway.apply.target.failures import from_postgres
from spillway.apply.target.own_schema import OWN_TABLES, PROGRESS_SQL, SCHEMA, owner_sql
from spillway.consumer.obstacles import as_one
from spillway.errors import (
    SourceError,
    SpillwayError,
    TargetNotPermitted,
    TargetNotPrepared,
    TargetTableMissing,
    TargetTableUnusable,
)
from spillway.pg.byte_session import take_bytes
from spillway.pg.connect_errors import quote_identifier
from spillway.pg.connecting import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spillway.apply.settings import ApplySettings
    from spillway.apply.tables.matched import MatchedTable
    from spillway.apply.target.facts import TargetFacts

    Connection = psycopg.Connection[Any]


def check_target(settings: ApplySettings) -> list[str]:
    """Look at the target, and at the tables on both sides.

    Returns:
        what is good to know and in nobody's way.

    Raises:
        SpillwayError: of the one thing that is in the way; of several, the first one's kind, with
            what all of them say.
    """
    rules = ConflictRules.parse(dict(settings.options.conflicts))
    name = f"spillway subscription {settings.subscription}"
    notes: list[str] = []
    with connect_target(settings.options.dsn, name) as connection:
        try:
            facts = ask(connection)
            facts.check_writable()
            rests = _triggers_rest(connection)
            problems = [*_schema(connection, settings, facts.role)]
            tables = _tables(settings, connection)
        except psycopg.Error as error:
            raise from_postgres(
                error, "the target can't be looked at", settings.options.dsn
            ) from error
        for found in tables:
            if isinstance(found, SpillwayError):
                missing = isinstance(found, TargetTableMissing)
                if not (missing and settings.options.create_tables):
                    problems.append(found)
            else:
                problems += _of_table(found, facts.role)
                if found.fires or found.references:
                    notes.append(_fires(found, rests=rests))
    if problems:
        raise as_one(problems, "on the target")
    if not facts.may_use_origins:
        notes.append(
            "rows carry no replication origin: the role may not use them, so a subscription the "
            "other way can't tell them from the target's own"
        )
    return [*notes, *_about_times(settings, rules, facts)]


def _about_times(
    settings: ApplySettings, rules: ConflictRules, facts: TargetFacts
) -> Iterator[str]:
    """What is wished, and needs to know whose a row is, where the target can't tell."""
    wished = rules.needing_commit_times()
    if settings.options.retain_dead_tuples:
        wished.append("retain_dead_tuples")
    if wished and not (facts.has_commit_times and facts.may_use_origins):
        lacks = (
            "the role may not use replication origins"
            if facts.has_commit_times
            else "track_commit_timestamp is off"
        )
        yield f"without effect, since the target does not tell whose a row is ({lacks}): " + (
            ", ".join(wished)
        )


def _triggers_rest(connection: Connection) -> bool:
    try:
        connection.execute("SET session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def _schema(connection: Connection, settings: ApplySettings, role: str) -> Iterator[SpillwayError]:
    tables = (PROGRESS_SQL, *target_plan(settings).own_tables)
    row = connection.execute(
        "SELECT pg_catalog.to_regnamespace(%s) IS NOT NULL,"
        " pg_catalog.has_database_privilege(current_database(), 'CREATE'),"
        " coalesce(pg_catalog.has_schema_privilege(pg_catalog.to_regnamespace(%s)::oid,"
        " 'CREATE'), false),"
        " (SELECT count(*) FROM pg_catalog.pg_class c WHERE c.relkind = 'r'"
        " AND c.relnamespace = pg_catalog.to_regnamespace(%s)::oid AND c.relname = ANY (%s)"
        " AND pg_catalog.has_table_privilege(c.oid, 'UPDATE'))",
        [SCHEMA, SCHEMA, SCHEMA, list(OWN_TABLES)],
    ).fetchone()
    assert row is not None
    there, may_make_schema, may_make_tables, writable = row
    if (there and (may_make_tables or writable >= len(tables))) or (not there and may_make_schema):
        return
    yield TargetNotPrepared(
        f"the role {role} may not make the schema spillway on the target, where the subscription "
        "keeps its place",
        hint=owner_sql(role, tables),
    )


def _tables(settings: ApplySettings, connection: Connection) -> list[MatchedTable | SpillwayError]:
    """Match what the source publishes now."""
    if not settings.source_dsn:
        return []
    publications = settings.selection.publications or ()
    try:
        with connect(settings.source_dsn) as source:
            take_bytes(source, shown=True)
            source.execute("SELECT pg_catalog.set_config('search_path', '', false)")
            oids = list_tables(source, publications, settings.selection.has)
            described = describe(source, publications, oids)
    except psycopg.Error as error:
        raise SourceError(
            f"the source can't be asked for its tables: {error.diag.message_primary or error}",
            hint="Check the source's log.",
        ) from None
    good = [one.relation for one in described.values() if isinstance(one, PublishedTable)]
    bad = [one for one in described.values() if isinstance(one, SpillwayError)]
    matched = match_all(connection, good, settings.options.rename.target_of)
    return [*bad, *matched.values()]


def _of_table(table: MatchedTable, role: str) -> Iterator[SpillwayError]:
    name = f"{table.schema}.{table.name}"
    if table.lacks:
        rights = ", ".join(table.lacks)
        yield TargetNotPermitted(
            f"the role {role} lacks {rights} on the target's table {name}",
            hint=f"GRANT {rights} ON {table.quoted} TO {quote_identifier(role)};",
            relation=name,
        )
    if table.row_security:
        yield TargetTableUnusable(
            f"row security of the target's table {name} applies to the role {role}",
            hint=f"ALTER ROLE {quote_identifier(role)} BYPASSRLS;",
            relation=name,
        )


def _fires(table: MatchedTable, *, rests: bool) -> str:
    what = [*(f"trigger or rule {name}" for name in table.fires)]
    if table.references:
        what.append("foreign keys")
    why = "" if rests else " (the role may not set session_replication_role)"
    return (
        f"{table.schema}.{table.name} is written change by change: {', '.join(what)} take effect"
        f"{why}"
    )
