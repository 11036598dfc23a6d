"""``spillway context``: services by name.

No command prints a token.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from spillway.cli import completion, connection
from spillway.cli.answer import Answer, Columns, Rows
from spillway.cli.confirmation import Yes, confirm
from spillway.cli.contexts import Context, Contexts, check_name, grpc_of
from spillway.cli.options import grpc_address
from spillway.cli.output import record, shows
from spillway.errors import DuplicateName, InvalidRequest
from spillway.loopback import is_loopback

app = typer.Typer(
    help="Name services, and say which one the commands talk to.", no_args_is_help=True
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="CONTEXT", help="The context's name.", autocompletion=completion.contexts
    ),
]

_LISTED: Final = Columns(
    names=("in_use", "name", "url", "token", "grpc"),
    ranked=("name", "in_use", "url", "token", "grpc"),
)


@app.command()
@shows()
def add(
    name: Annotated[str, typer.Argument(metavar="CONTEXT", help="What to call it.")],
    url: Annotated[
        str, typer.Option(help="Where REST is: https://host:port, or http:// without TLS.")
    ],
    grpc: Annotated[
        str | None,
        typer.Option(
            help="Where gRPC is: host:port, https:// before it with TLS; by default the URL's "
            "host at port 50051."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="The file that holds the service's token.")
    ] = None,
    token_env: Annotated[
        str | None, typer.Option(help="The variable that holds the service's token.")
    ] = None,
    token_stdin: Annotated[
        bool,
        typer.Option("--token-stdin", help="Read the token from stdin, and store it in the file."),
    ] = False,
    tls_ca: Annotated[
        Path | None, typer.Option(help="The CAs to verify the service with, a PEM file.")
    ] = None,
    tls_client_cert: Annotated[
        Path | None, typer.Option(help="The certificate to show, a PEM file.")
    ] = None,
    tls_client_key: Annotated[Path | None, typer.Option(help="Its key, a PEM file.")] = None,
    tls_server_name: Annotated[
        str | None, typer.Option(help="The name that the service's certificate must be for.")
    ] = None,
    use_it: Annotated[
        bool, typer.Option("--use", help="Use it from now on: `spillway context use`.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also where there is one of that name.")
    ] = False,
) -> Answer:
    """Name a service. It is not asked for anything.

    The token is named by the file or the variable that holds it, or stored with the context, in a
    file of its owner alone.
    """
    check_name(name)
    if sum((token_file is not None, token_env is not None, token_stdin)) > 1:
        raise InvalidRequest(
            "the token is given more than once",
            hint="Give one of --token-file, --token-env and --token-stdin.",
        )
    if (tls_client_cert is None) != (tls_client_key is None):
        raise InvalidRequest(
            "a client's certificate needs its key, and a key its certificate",
            hint="Give both --tls-client-cert and --tls-client-key, or neither.",
        )
    contexts = Contexts.load()
    if name in contexts.by_name and not replace:
        raise DuplicateName(
            f'context "{name}" already exists', hint="Choose another name, or give --replace."
        )
    made = Context(
        url=_url(url),
        grpc=None if grpc is None else grpc_address(grpc),
        token=_read_token() if token_stdin else None,
        token_file=_absolute(token_file),
        token_env=token_env,
        tls_ca=_absolute(tls_ca),
        tls_client_cert=_absolute(tls_client_cert),
        tls_client_key=_absolute(tls_client_key),
        tls_server_name=tls_server_name,
    )
    contexts.by_name[name] = made
    if use_it:
        contexts.current = name
    contexts.save()
    if made.has_token and _is_in_the_clear(made.url):
        typer.echo(f"warning: the token goes to {made.url} as clear text", err=True)
    return _shown(contexts, name)


@app.command("list")
@shows()
def list_contexts() -> Answer:
    """List the contexts, with a mark at the one in use."""
    contexts = Contexts.load()
    rows = [_row(contexts, name) for name in contexts.by_name]
    return Answer(rows, list(contexts.by_name), [Rows(rows, _LISTED)])


@app.command()
def use(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="CONTEXT", help="The context's name.", autocompletion=completion.contexts
        ),
    ] = None,
    none: Annotated[
        bool, typer.Option("--none", help="None from now on: the environment, or the defaults.")
    ] = False,
) -> None:
    """Use a context from now on, in every shell of this user."""
    if (name is None) != none:
        raise InvalidRequest(
            "which context is to be used is not said", hint="Give its name, or --none."
        )
    contexts = Contexts.load()
    if name is not None:
        contexts.get(name)
    contexts.current = name
    contexts.save()
    counts = connection.context_name(os.environ)
    if counts != name:
        where = "SPILLWAY_CONTEXT" if counts else "SPILLWAY_URL or SPILLWAY_GRPC"
        typer.echo(f"warning: {where} is set here, and counts more", err=True)


@app.command()
@shows()
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="CONTEXT",
            help="The context's name; the one in use otherwise.",
            autocompletion=completion.contexts,
        ),
    ] = None,
) -> Answer:
    """Show a context: where its token is, and not the token."""
    contexts = Contexts.load()
    found = name or connection.context_name()
    if found is None:
        raise InvalidRequest(
            "no context is in use",
            hint="`spillway context list` lists what exists; `spillway context use` takes one.",
        )
    return _shown(contexts, found)


@app.command()
def remove(name: Name, yes: Yes = False) -> None:
    """Forget a context, and the token that is stored with it."""
    contexts = Contexts.load()
    contexts.get(name)
    confirm(f"Remove context {name}?", yes=yes)
    del contexts.by_name[name]
    if contexts.current == name:
        contexts.current = None
    contexts.save()


def _shown(contexts: Contexts, name: str) -> Answer:
    found = contexts.get(name)
    given = dataclasses.asdict(found)
    for secret in ("token", "token_file", "token_env"):
        del given[secret]
    row = _row(contexts, name)
    shown = {"name": name, **given, "grpc": row["grpc"], "token": row["token"]}
    return record(shown, name)


def _row(contexts: Contexts, name: str) -> dict[str, Any]:
    found = contexts.by_name[name]
    return {
        "in_use": "*" if contexts.current == name else None,
        "name": name,
        "url": found.url,
        "token": found.token_is,
        "grpc": found.grpc or grpc_of(found.url),
    }


def _url(given: str) -> str:
    try:
        parts = urlsplit(given)
        # It is checked when it is read.
        is_address = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_address = False
    if not is_address or parts.scheme not in {"http", "https"}:
        raise InvalidRequest(
            f"{given!r} is not the address of a service",
            hint="Write https://spillway.example:8080, or http:// for one without TLS.",
        )
    if "@" in parts.netloc:
        raise InvalidRequest(
            "an address has no user and no password",
            hint="Give the token by --token-file, --token-env or --token-stdin.",
        )
    return given.rstrip("/")


def _is_in_the_clear(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def _read_token() -> str:
    token = sys.stdin.readline().strip()
    if not token:
        raise InvalidRequest("the token is empty", hint="Write it to stdin, in one line.")
    return token


def _absolute(path: Path | None) -> str | None:
    """Return a path that means the same wherever a command is run."""
    return None if path is None else str(path.expanduser().absolute())
