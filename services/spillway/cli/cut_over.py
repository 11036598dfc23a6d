"""``spillway subscription wait`` and ``sequences``: what a move from one server to another needs
when nobody writes any more.

``wait`` asks the service, by the slot: what is confirmed is durable on the target. The source is
asked for nothing but where its WAL ends, and only if no LSN is given. ``sequences`` reads both
databases itself, so that it is done when it returns: ALTER SUBSCRIPTION … REFRESH SEQUENCES of
PostgreSQL 19.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spillway.cli.apply_verify import SOURCE_VARIABLE, TARGET_VARIABLE, Name, dsn_of, look_up
from spillway.cli.connection import connect
from spillway.errors import NotReady, SourceError
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from spillway.cli.rest_client import RestClient

_POLL_S: Final = 0.1
#: Its commit record is behind all others, and flushed: WAL of transactions with synchronous_commit
#: off, and the head of a page, would else be waited for until somebody writes.
_MARK: Final = """
BEGIN READ WRITE; SET LOCAL synchronous_commit = local;
SELECT pg_catalog.pg_logical_emit_message(true, 'spillway', ''); COMMIT
"""


def wait(
    subscription: Name,
    lsn: Annotated[
        str | None,
        typer.Option(
            metavar="LSN",
            help="Of the source; by default where its WAL ends now, asked by "
            "SPILLWAY_APPLY_SOURCE_DSN.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that it may take.")] = 600.0,
) -> None:
    """Wait until the target has, durably, all that committed on the source before an LSN, in all of
    the subscription's tables; exit code 1 if it takes too long.
    """
    deadline = time.monotonic() + timeout
    wanted = _end_of_wal() if lsn is None else Lsn.parse(lsn)
    with connect() as client:
        view = _view(client, subscription)
        while missing := _missing(view, wanted):
            if view["state"] == "paused":
                raise NotReady(
                    f'subscription "{subscription}" is disabled, and {missing}',
                    hint=f"spillway subscription enable {subscription}",
                )
            if time.monotonic() >= deadline:
                error = view["error"]
                raise NotReady(
                    f'subscription "{subscription}" is not there after {timeout:g} s: {missing}'
                    + ("" if error is None else f"; it failed: {error['message']}"),
                    hint=f"spillway subscription show {subscription} says how it is."
                    if error is None
                    else error["hint"],
                )
            time.sleep(_POLL_S)
            view = _view(client, subscription)
    typer.echo(f"{subscription} has everything before {wanted}")


def sequences(
    subscription: Name,
    may_go_back: Annotated[
        bool, typer.Option("--may-go-back", help="Also those that are further on the target.")
    ] = False,
) -> None:
    """Set the target's sequences to the source's values, those of the subscription's tables; exit
    code 1 if one could not be set.
    """
    import psycopg  # noqa: PLC0415 - not every command needs it

    from spillway.apply.sync.published import list_tables  # noqa: PLC0415
    from spillway.apply.sync.sequences import read, write  # noqa: PLC0415
    from spillway.apply.target.connection import connect_target  # noqa: PLC0415
    from spillway.apply.target.failures import from_postgres  # noqa: PLC0415

    subscribed = look_up(subscription)
    publications = subscribed.selection.publications
    target_dsn = dsn_of(TARGET_VARIABLE)
    with _source() as source:
        of = None
        if publications:
            of = tuple(list_tables(source, publications, subscribed.selection.has))
        theirs = read(source, of)
    with connect_target(target_dsn, f"spillway subscription {subscription} sequences") as target:
        try:
            found = write(target, theirs, subscribed.rename.target_of, may_go_back=may_go_back)
        except psycopg.Error as error:
            raise from_postgres(error, "setting sequences", target_dsn) from None
    for name in found.changed:
        typer.echo(f"{name}: set")
    for name, reason in found.failed.items():
        typer.echo(f"{name}: not set, {reason}")
    typer.echo(
        f"{len(theirs)} sequences: {len(found.changed)} set, {len(found.failed)} can't be set"
    )
    if found.failed:
        raise typer.Exit(1)


def _view(client: RestClient, subscription: str) -> dict[str, Any]:
    view: dict[str, Any] = client.call("GET", "subscriptions", subscription)
    return view


def _missing(view: dict[str, Any], wanted: Lsn) -> str:
    """Say what keeps a subscription from having all before *wanted*; '' if nothing does."""
    confirmed = Lsn.parse(view["confirmed_flush_lsn"] or "0/0")
    late = [one for one in view["table_states"] if one["state"] != "ready"]
    if late:
        # What is confirmed says nothing of a table that is not copied.
        first = late[0]
        why = f", {first['reason']}" if first["reason"] else ""
        more = f", and {len(late) - 1} more" if len(late) > 1 else ""
        return f"{first['table']} is {first['state']}{why}{more}"
    return "" if confirmed >= wanted else f"it has everything before {confirmed}, of {wanted}"


@contextmanager
def _source() -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Be connected to the source for SQL, in autocommit, with nothing on the search_path."""
    import psycopg  # noqa: PLC0415 - as above

    from spillway.apply.sync.copiers import connect_source  # noqa: PLC0415

    with connect_source(dsn_of(SOURCE_VARIABLE)) as connection:
        try:
            connection.execute("SELECT pg_catalog.set_config('search_path', '', false)")
            yield connection
        except psycopg.Error as error:
            raise SourceError(
                f"the source refused: {error}", hint="Check the source's log."
            ) from None


def _end_of_wal() -> Lsn:
    """Return an LSN behind all that is committed."""
    with _source() as connection:
        connection.execute(_MARK)
        ((text,),) = connection.execute(
            "SELECT pg_catalog.pg_current_wal_flush_lsn()::text"
        ).fetchall()
    return Lsn.parse(str(text))
