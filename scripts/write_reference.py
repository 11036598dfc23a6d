"""Write the files that are made of declarations; a test fails when one is behind.

errors.md is written from the tree in spillway.errors, cli.md from the commands' own definitions,
settings.md from spillway.settings. Of rest.md the parts between two comments are written, from
spillway.declarations; and from there, too, the tables of the Terraform provider, which can't import
the service: its framework needs another protobuf.

    python scripts/write_reference.py
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spillway import errors
from spillway.apply.commands.app import app as apply_app
from spillway.cli.program import app
from spillway.declarations.lake_options import LAKE_OPTIONS, NUMBERS, SEVERAL, LakeOption
from spillway.declarations.postgres_options import POSTGRES_OPTIONS
from spillway.declarations.slot_columns import SLOT_COLUMNS, SlotColumn
from spillway.lake.commands.app import app as lake_app
from spillway.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
REFERENCE = PROJECT / "docs" / "reference"
PROVIDER = PROJECT / "terraform" / "src" / "terraform_provider_spillway" / "declared.json"

#: What a column's type is in Terraform. Records have attributes of their own, and are not among the
#: provider's.
PROVIDER_TYPES = {
    "name": "string", "text": "string", "bool": "bool", "int4": "number", "int8": "number",
    "oid": "number",
    "xid": "number", "pg_lsn": "string", "timestamptz": "string", "float8": "number",
    "jsonb": "map of string",
}  # fmt: skip
PROVIDER_OPTION_TYPES = {
    "text": "string", "choice": "string", "time": "string", "size": "string", "number": "number",
    "whole number": "number", "columns": "map of list of string",
    "partitions": "map of list of string", "masks": "map of list of string",
    "tables": "list of string", "times": "map of string", "settings": "map of string",
}  # fmt: skip
PROVIDER_POSTGRES_TYPES = {
    "choice": "string", "flag": "bool", "whole number": "number", "texts": "map of string",
    "object": "json",
}  # fmt: skip

ERRORS = """\
# Errors

Every error that Spillway raises on purpose has a stable `code`. REST shows it in an RFC 9457
problem document together with a `hint` that says what to do, gRPC in the error's details, the
commands on stderr. The code maps once to an HTTP status, a gRPC status and a SQLSTATE. Codes keep
their meaning; new ones may be added below an existing parent, so handle the parents.

This page is written from `services/spillway/errors.py` by `scripts/write_reference.py`.

| code | parent | HTTP | gRPC | SQLSTATE | meaning |
|---|---|---|---|---|---|
"""

COMMANDS = """\
# Commands

LSNs are PostgreSQL's text. Where the service is, and the token, are taken from the environment
([settings](settings.md)) or from a context, unless an option says otherwise. Exit codes: 0 done, 1
an error (message, hint and [code](errors.md) on stderr) or a question that was answered with no, 2
wrong usage, 130 interrupted; `status --exit-code` has two more. A hint says what to do in the words
of the commands. [How to use them](../how-to/use-the-command-line.md) goes through them by what one
wants.

## What is printed

A list at a terminal fits its width: columns that don't are left out, the least important first, and
the last line names them. Behind a pipe a list is a line a row, with a heading and tabs between, all
columns whole, for `awk`, `cut` and `sort`; `-` is what is unknown or doesn't exist. `--output` says
otherwise: `wide` has all columns at a terminal, too; `json` (and `--json`) is what the service
answers; `name` is a name a line. Its short form is `-o`, but for commands whose `-o` is a plugin's
option. `--sort COLUMN` sorts by any column that `show` has, `--sort -COLUMN` in reverse, what is
unknown last. `NO_COLOR` leaves colours out.

`--watch` (`-w`) looks again and again until Ctrl-C or SIGTERM. At a terminal it has a screen of its
own; behind a pipe each look stands below the last, with an empty line between, or as JSON in one
line. The first look must succeed; later ones that fail leave what was seen last, marked `STALE`
with its age, and on a pipe a line on standard error.

```sh
# slots that are more than 1 GB behind
spillway slot list | awk -F '\\t' 'NR > 1 && $4 > 1e9 { print $1, $4 }'
```

A slot's `lag_bytes` is WAL that is decoded and that its consumer has not confirmed; `lag_seconds`
is the age of the oldest transaction in that, 0 without one.

## Questions

At a terminal (standard input and standard error are one) what loses something asks first:
`slot drop`, `advance`, `rewind`, `end-session`, `source drop`, `source restart`,
`subscription drop`, `subscription skip`, `user drop`, `context remove`. `--yes` answers. Where
there is no terminal nobody is asked.

## Contexts

`spillway context` keeps services by name in `contexts.json` in `$XDG_CONFIG_HOME/spillway`
(`~/.config/spillway`): address, TLS files, and the token, by the file or variable that holds it or
itself. The file is its owner's alone; one that others may read or write is refused. In this order a
command takes the service of `--context`, of `SPILLWAY_URL` or `SPILLWAY_GRPC`, of
`SPILLWAY_CONTEXT`, of `spillway context use`, or the default. A context's token is never sent to an
address that the environment names. Other variables that are set (`SPILLWAY_TOKEN`,
`SPILLWAY_TLS_CA` …) count more than a context that was not named on the command line.
`spillway lake` takes a context by `--context` alone, and what the service starts takes none.

## Completion

`spillway --install-completion` sets it up for the shell that it is run in, bash, zsh or fish;
`--show-completion` prints the script. Besides commands and options it completes the names of slots,
sources, databases, plugins, subscriptions and their tables, users and contexts: it asks the service
that the command would talk to, for half a second at most, and completes nothing when that doesn't
answer.

## The commands

They are written from their own definitions by `scripts/write_reference.py`; `--help` shows the
same.
"""

SETTINGS = """\
# Settings

Environment variables. An empty one counts as not set. What belongs to one command only is an option
of that command ([commands](cli.md)). Sizes are bytes, or numbers with kB, MB, GB or TB.

This page is written from `services/spillway/settings.py` by `scripts/write_reference.py`.

## The service and its commands

| variable | default | meaning |
|---|---|---|
"""

OTHER_SETTINGS = """
## The lake

| variable | default | meaning |
|---|---|---|
| `SPILLWAY_JARS` | `.cache/jars` below the current directory | the folder with Delta Lake's jars |
| `SPILLWAY_KEYS` | `.cache/keys` below the current directory | of lakes on object storage that \
are [merged by position](../how-to/fill-a-lake.md#merge-by-position): the folder with the \
indexes of keys |
| `SPILLWAY_IVY_SETTINGS` | Ivy's own | an `ivysettings.xml` for resolving them |
| `SPILLWAY_LAKE_MASK_SECRET` | none | the secret with which a lake's \
[masks](../how-to/fill-a-lake.md#columns-left-out-or-masked) hash, 16 characters or more: of the \
job, of the service that runs it, and of Spark's workers |
| `SPILLWAY_LAKE_SOURCE_DSN` | none | the source's connection string, for initial loads: its role \
needs REPLICATION and SELECT |
| `SPILLWAY_SUBSCRIPTION_RUN` | none | set by the service for a subscription's program, which \
bears it as its mark |
| `SPILLWAY_SUBSCRIPTION` | none | likewise, the subscription's name: the service names it as the \
consumer of a slot |
| `SPILLWAY_OWN_SOCKET` | none | likewise, the Unix socket by which a program that applies into \
PostgreSQL has its stream |

## Applying into PostgreSQL

| variable | default | meaning |
|---|---|---|
| `SPILLWAY_TARGET_DSN` | none | for `spillway subscription create` and `alter`: the connection \
string of the PostgreSQL that is filled |
| `SPILLWAY_APPLY_OPTIONS` | none | set by the service for `spillway apply`: the target with its \
connection string, as JSON |
| `SPILLWAY_APPLY_SOURCE_DSN` | none | likewise, and for `spillway subscription verify` and \
`repair`: the source's connection string |
| `SPILLWAY_APPLY_TARGET_DSN` | none | for `spillway subscription verify` and `repair`: the \
target's connection string |

## Tests and development

| variable | default | meaning |
|---|---|---|
| `SPILLWAY_FAILPOINTS` | none | arms failpoints, as `walstore.before_fsync=kill@3`; see \
`services/spillway/failpoints.py` |
| `SPILLWAY_CACHE` | `.cache` | where `make` and the tests keep downloads |
| `SPILLWAY_TEST_POSTGRES_15` (14 to 18) | the pinned server | the bin directory of a server to \
test with |
"""


def errors_page() -> str:
    """Return errors.md."""
    rows: list[str] = []

    def visit(cls: type[errors.SpillwayError], parent: str) -> None:
        meaning = _one_line(inspect.getdoc(cls) or "")
        if cls is errors.SpillwayError:
            meaning = "An error that is Spillway's own fault."
        rows.append(
            f"| `{cls.code}` | {parent} | {cls.http_status} | {cls.grpc_status} | {cls.sqlstate} | "
            f"{meaning} |"
        )
        for subclass in cls.__subclasses__():
            if subclass.__module__ == errors.__name__:
                visit(subclass, f"`{cls.code}`")

    visit(errors.SpillwayError, "")
    return ERRORS + "\n".join(rows) + "\n"


def commands_page() -> str:
    """Return cli.md."""
    sections = [COMMANDS]
    for name, command in _commands("spillway", typer.main.get_command(app)):
        if name == "spillway lake":
            continue
        sections.append(_section(name, command))
    for name, command in _commands("spillway lake", typer.main.get_command(lake_app)):
        sections.append(_section(name, command))
    for name, command in _commands("spillway apply", typer.main.get_command(apply_app)):
        sections.append(_section(name, command))
    return "\n".join(sections)


def settings_page() -> str:
    """Return settings.md."""
    rows = [
        f"| `{variable.name}` | {variable.default} | {variable.meaning} |".replace("|  |", "| |")
        for variable in Settings.variables()
    ]
    return SETTINGS + "\n".join(rows) + "\n" + OTHER_SETTINGS


def rest_page(page: str) -> str:
    """Return rest.md with what is written of it."""
    page = _with_part(page, "columns of a slot", _slot_columns())
    page = _with_part(page, "options of a lake", _lake_options())
    return _with_part(page, "options of a PostgreSQL", _postgres_options())


def _postgres_options() -> Iterator[str]:
    yield "| field | value | without it | meaning |"
    yield "|---|---|---|---|"
    for option in POSTGRES_OPTIONS:
        value = {
            "choice": ", ".join(f"`{one}`" for one in option.choices),
            "flag": "`true`, `false`",
            "whole number": f"a whole number, {option.least} to {option.most}",
        }.get(option.kind, f"object: `{json.dumps(option.example)}`")
        default = "" if option.default is None else f"`{json.dumps(option.default).strip(chr(34))}`"
        yield f"| `{option.name}` | {value} | {default} | {option.meaning} |"


def provider_tables() -> str:
    """Return what the provider takes from the declarations, as JSON."""
    tables = {
        "slot_columns": [
            {
                "name": column.name,
                "type": PROVIDER_TYPES[column.type],
                "description": column.description,
            }
            for column in SLOT_COLUMNS
            if column.type in PROVIDER_TYPES
        ],
        "lake_options": [
            {
                "name": option.name,
                "type": PROVIDER_OPTION_TYPES[option.kind],
                "description": option.description,
                "values": option.choices,
            }
            for option in LAKE_OPTIONS
        ],
        "postgres_options": [
            {
                "name": option.name,
                "type": PROVIDER_POSTGRES_TYPES[option.kind],
                "description": option.description,
                "values": option.choices,
            }
            for option in POSTGRES_OPTIONS
        ],
    }
    return json.dumps(tables, indent=2, ensure_ascii=False) + "\n"


def _with_part(page: str, name: str, lines: Iterator[str]) -> str:
    """Return a page with the part of that name replaced."""
    begin, end = f"<!-- {name}: by scripts/write_reference.py -->", f"<!-- end of {name} -->"
    part = "\n".join((begin, *lines, end))
    written, count = re.subn(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: part, page, flags=re.DOTALL
    )
    if count != 1:
        msg = f"a page has the part {name!r} {count} times"
        raise ValueError(msg)
    return written


def _slot_columns() -> Iterator[str]:
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for column in SLOT_COLUMNS:
        yield f"| `{column.name}` | {_json_type(column)} | {_one_line(column.description)} |"


def _lake_options() -> Iterator[str]:
    yield "| field | option of `lake run` | value | without it | meaning |"
    yield "|---|---|---|---|---|"
    for option in LAKE_OPTIONS:
        default = "" if option.default is None else f"`{option.default}`"
        meaning = _one_line(option.description)
        yield (
            f"| `{option.name}` | `{option.option}` | {_value(option)} | {default} | {meaning} |"
        )


def _value(option: LakeOption) -> str:
    """Say what a value may be."""
    if option.kind == "choice":
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.kind in NUMBERS:
        most = " or more" if option.most is None else f" to {option.most:g}"
        return f"a {option.kind}, {option.least:g}{most}"
    what = "object" if option.kind in SEVERAL else f"a {option.kind}"
    return f"{what}: `{json.dumps(option.example)}`"


def _json_type(column: SlotColumn) -> str:
    """Return PostgreSQL's type, and what is JSON's where that is another one."""
    of_json = {"jsonb": "object of texts", "record": "object"}.get(column.type, column.type)
    return of_json if column.null is None else f"{of_json}, null"


def pages() -> dict[Path, str]:
    """Return what each page should hold."""
    rest = REFERENCE / "rest.md"
    return {
        rest: rest_page(rest.read_text()),
        PROVIDER: provider_tables(),
        REFERENCE / "errors.md": errors_page(),
        REFERENCE / "cli.md": commands_page(),
        REFERENCE / "settings.md": settings_page(),
    }


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield each command with its full name; a group is what has commands."""
    for part, inner in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {part}", inner)
    if not hasattr(command, "commands"):
        yield name, command


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [
        p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts
    ]
    usage = " ".join(
        [name, *((argument.metavar or argument.name).upper() for argument in arguments)]
    )
    lines = [f"## `{usage}`", "", inspect.cleandoc(command.help or ""), ""]
    if options:
        lines += ["| option | default | meaning |", "|---|---|---|"]
        lines += [_option(option) for option in options]
        lines.append("")
    return "\n".join(lines)


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    default = "" if option.default is None or option.is_flag else f"`{_shown(option.default)}`"
    if option.required:
        default = "required"
    return f"| {names} | {default} | {_one_line(option.help or '')} |"


def _shown(value: object) -> str:
    return str(getattr(value, "value", value))


def _one_line(text: str) -> str:
    return text.split("\n\n", maxsplit=1)[0].replace("\n", " ").replace("|", "\\|")


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
