"""``spillway user``: REST's calls on users, who may come in over PostgreSQL's own protocol.

A password is read where others don't see it, and its verifier is made here: it never crosses the
network.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from spillway.cli import completion
from spillway.cli.answer import Answer, Columns, Rows
from spillway.cli.confirmation import Yes, confirm
from spillway.cli.connection import call
from spillway.cli.lists import Sort, in_order
from spillway.cli.output import record, shows
from spillway.errors import InvalidRequest

app = typer.Typer(
    help="Make, look at and change users: who may come in over PostgreSQL's own protocol.",
    no_args_is_help=True,
)

Name = Annotated[
    str, typer.Argument(metavar="USER", help="The user's name.", autocompletion=completion.users)
]
PasswordStdin = Annotated[
    bool,
    typer.Option(
        "--password-stdin", help="Read the password from stdin; it is asked for otherwise."
    ),
]
Verifier = Annotated[
    str | None,
    typer.Option(help="Instead of a password: what pg_authid.rolpassword has (SCRAM-SHA-256$…)."),
]
Slots = Annotated[
    list[str] | None,
    typer.Option("--slot", help="Only this slot; may be repeated; all unless named."),
]

_LISTED: Final = Columns(
    names=("name", "databases", "slots", "manage_slots", "run_sql", "created_at"),
    ranked=("name", "databases", "slots", "manage_slots", "run_sql", "created_at"),
)


@app.command()
@shows()
def create(
    name: Name,
    database: Annotated[
        list[str],
        typer.Option(help="For this one: source/database, source/* or *; may be repeated."),
    ],
    slot: Slots = None,
    manage_slots: Annotated[
        bool, typer.Option("--manage-slots", help="It may make and drop slots.")
    ] = False,
    run_sql: Annotated[
        bool, typer.Option("--run-sql", help="It may run SQL, with the source's credential.")
    ] = False,
    password_stdin: PasswordStdin = False,
    verifier: Verifier = None,
) -> Answer:
    """Make a user (CREATE ROLE)."""
    body = {
        "name": name,
        "verifier": _verifier(verifier, password_stdin=password_stdin),
        "databases": database,
        "slots": slot or None,
        "manage_slots": manage_slots,
        "run_sql": run_sql,
    }
    return record(call("POST", "users", body=body), name)


@app.command("list")
@shows(watch=True)
def list_users(sort: Sort = None) -> Answer:
    """List users."""
    found = in_order(call("GET", "users")["users"], sort)
    return Answer(found, [one["name"] for one in found], [Rows(found, _LISTED)])


@app.command()
@shows()
def show(name: Name) -> Answer:
    """Show a user."""
    return record(call("GET", "users", name), name)


@app.command()
@shows()
def alter(
    name: Name,
    database: Annotated[
        list[str] | None,
        typer.Option(help="For these and no others: source/database, source/* or *."),
    ] = None,
    slot: Slots = None,
    all_slots: Annotated[
        bool, typer.Option("--all-slots", help="All slots of its databases.")
    ] = False,
    manage_slots: Annotated[
        bool | None,
        typer.Option("--manage-slots/--no-manage-slots", help="It may make and drop slots."),
    ] = None,
    run_sql: Annotated[
        bool | None, typer.Option("--run-sql/--no-run-sql", help="It may run SQL.")
    ] = None,
    password: Annotated[bool, typer.Option("--password", help="Ask for a new password.")] = False,
    password_stdin: PasswordStdin = False,
    verifier: Verifier = None,
) -> Answer:
    """Change a user; what is not given stays, and who is connected stays so (ALTER ROLE)."""
    body: dict[str, object] = {}
    if password or password_stdin or verifier is not None:
        body["verifier"] = _verifier(verifier, password_stdin=password_stdin)
    if database:
        body["databases"] = database
    if slot or all_slots:
        body["slots"] = None if all_slots else slot
    if manage_slots is not None:
        body["manage_slots"] = manage_slots
    if run_sql is not None:
        body["run_sql"] = run_sql
    if not body:
        raise InvalidRequest(
            "what is to change is not said",
            hint="Give --password, --database, --slot, --all-slots, --manage-slots or --run-sql.",
        )
    return record(call("PATCH", "users", name, body=body), name)


@app.command()
def drop(name: Name, yes: Yes = False) -> None:
    """Drop a user; who is connected stays so (DROP ROLE)."""
    confirm(f"Drop user {name}?", yes=yes)
    call("DELETE", "users", name)


def _verifier(given: str | None, *, password_stdin: bool) -> str:
    """Return what was given, or make one of a password that is asked for."""
    if given is not None:
        return given
    # unicodedata's tables, for a command that needs them.
    from spillway.users.verifier import Verifier as Made  # noqa: PLC0415

    if password_stdin:
        password = sys.stdin.readline().rstrip("\n")
    else:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    if not password:
        raise InvalidRequest("the password is empty", hint="Give one that has characters.")
    return str(Made.of_password(password))
