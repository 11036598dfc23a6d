"""What a failure of the target means: libpq's error to a typed one.

A statement's error has a SQLSTATE, which decides. A refused connection is text only, which is read
as a source's is (:mod:`spillway.pg.connect_errors`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spillway.errors import (
    SourceAuthFailed,
    SourceConnectionsExhausted,
    SourceError,
    SourceNotPermitted,
    SpillwayError,
    TargetAuthFailed,
    TargetConnectionsExhausted,
    TargetDiskFull,
    TargetError,
    TargetNotPermitted,
    TargetReadOnly,
    TargetRefused,
    TargetSerialization,
    TargetUnavailable,
)
from spillway.pg.conninfo import redact

if TYPE_CHECKING:
    import psycopg

_COMES_BACK: Final = (
    "It is tried again. If it lasts: check that the server runs and can be reached from here."
)
#: By the SQLSTATE, or its class of two characters.
_KINDS: Final[dict[str, tuple[type[TargetError], str]]] = {
    "08": (TargetUnavailable, _COMES_BACK),
    "57P01": (TargetUnavailable, _COMES_BACK),
    "57P02": (TargetUnavailable, _COMES_BACK),
    "57P03": (TargetUnavailable, _COMES_BACK),
    "57P05": (TargetUnavailable, _COMES_BACK),
    "53300": (
        TargetConnectionsExhausted,
        "Raise max_connections of the target or the role's CONNECTION LIMIT, or end sessions.",
    ),
    "53100": (
        TargetDiskFull,
        "Make room on the target's disk; it is tried again, and nothing is lost meanwhile.",
    ),
    "25006": (
        TargetReadOnly,
        "Point the subscription's DSN at the primary; see SHOW default_transaction_read_only.",
    ),
    "28P01": (TargetAuthFailed, "Check user and password in the target's DSN."),
    "28000": (TargetNotPermitted, "Check the target's pg_hba.conf, and that the role may log in."),
    "42501": (
        TargetNotPermitted,
        "Grant the right that is named to the subscription's role, as the object's owner.",
    ),
    "42883": (
        TargetRefused,
        (
            "Have that on the target. Or it is an equality of whole rows, of a type without one, "
            "as the source's table has REPLICA IDENTITY FULL and the target's no key. Give it a "
            "primary key there, of what is unique."
        ),
    ),
    "40001": (TargetSerialization, "It is tried again."),
    "40P01": (TargetSerialization, "It is tried again."),
    "55P03": (TargetSerialization, "It is tried again."),
}
#: Classes, or whole codes.
_OF_A_TABLE: Final = ("09", "0A", "21", "22", "23", "27", "38", "39", "42", "44", "55000", "P0")


def may_be_of_a_table(error: psycopg.Error) -> bool:
    """Say whether what the target refused may be a matter of the table that a statement was of: its
    rows, its definition, its privileges, what its triggers do.
    """
    return error.sqlstate is not None and error.sqlstate.startswith(_OF_A_TABLE)


def from_postgres(error: psycopg.Error, what: str, dsn: str = "") -> SpillwayError:
    """Make the typed error of what a statement on the target failed with.

    Args:
        error: psycopg's.
        what: what was being done, as the message begins: ``table "s.t" can't be copied``.
        dsn: of the target, whose secrets are masked should the server repeat them.
    """
    state = error.sqlstate
    if state is None:
        state = "08006"
    kind, hint = _KINDS.get(state) or _KINDS.get(state[:2]) or (TargetRefused, "")
    diagnosis = error.diag
    text = diagnosis.message_primary or str(error) or "the connection is lost"
    if dsn:
        text = redact(text, dsn)
    text = " ".join(text.split())
    if diagnosis.message_detail:
        text += f" ({' '.join(diagnosis.message_detail.split())})"
    if not hint:
        hint = diagnosis.message_hint or "The target's log says more."
    details = {
        "sqlstate": state,
        "schema": diagnosis.schema_name,
        "table": diagnosis.table_name,
        "constraint": diagnosis.constraint_name,
    }
    return kind(
        f"{what}: {text}", hint=hint, **{name: value for name, value in details.items() if value}
    )


def from_connecting(told: SourceError) -> TargetError:
    """Make the target's error of a connection that did not come about, which *told* says of."""
    message = told.message.replace("connect to the source at", "connect to the target at")
    message = message.replace("the source's host name", "the target's host name")
    kind: type[TargetError] = TargetUnavailable
    if isinstance(told, SourceConnectionsExhausted):
        kind = TargetConnectionsExhausted
    elif isinstance(told, SourceAuthFailed):
        kind = TargetAuthFailed
    elif isinstance(told, SourceNotPermitted):
        kind = TargetNotPermitted
    return kind(message, hint=told.hint, **told.details)
