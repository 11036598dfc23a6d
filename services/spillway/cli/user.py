"""``spillway user``: REST's calls on users, who may come in over PostgreSQL's own protocol.

A password is read where others don't see it, and its verifier is made here: it never crosses the
network.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from spillway.cli.output import AsJson, print_json, print_record, print_table
from spillway.cli.rest_client import RestClient
from spillway.errors import InvalidRequest
from spillway.settings import Settings

app = typer.Typer(
    help="Make, look at and change users: who may come in over PostgreSQL's own protocol.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
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

_LIST_COLUMNS: Final = ("name", "databases", "slots", "manage_slots", "run_sql", "created_at")


@app.command()
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
    as_json: AsJson = False,
) -> None:
    """Make a user (CREATE ROLE)."""
    body = {
        "name": name,
        "verifier": _verifier(verifier, password_stdin=password_stdin),
        "databases": database,
        "slots": slot or None,
        "manage_slots": manage_slots,
        "run_sql": run_sql,
    }
    _show(_call("POST", "users", body=body), as_json=as_json)


@app.command("list")
def list_users(as_json: AsJson = False) -> None:
    """List users."""
    answer = _call("GET", "users")
    if as_json:
        print_json(answer["users"])
    else:
        print_table(answer["users"], _LIST_COLUMNS, ranked=_LIST_COLUMNS)


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show a user."""
    _show(_call("GET", "users", name), as_json=as_json)


@app.command()
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
    as_json: AsJson = False,
) -> None:
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
    _show(_call("PATCH", "users", name, body=body), as_json=as_json)


@app.command()
def drop(name: Name) -> None:
    """Drop a user; who is connected stays so (DROP ROLE)."""
    _call("DELETE", "users", name)


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


def _call(method: str, *path: str, **arguments: Any) -> Any:
    with RestClient(Settings.from_environment()) as client:
        return client.call(method, *path, **arguments)


def _show(answer: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print_record(answer)
