"""What a form does, said otherwise: as a call of REST, as a command, and for Terraform.

Each is made of the body that REST takes. Connection strings are secrets and never shown: a variable
stands in their place, as each of the three writes it.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spillway.declarations.lake_options import SEVERAL, form_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The variables that have the connection strings, of the shell and of Terraform.
_SHELL: Final = {"source": "SOURCE_DSN", "subscription": "TARGET_DSN"}
_UNNAMED: Final = "NAME"


class Equivalent(NamedTuple):
    """The same in other words."""

    title: str
    text: str


def equivalents_of(kind: str, body: Mapping[str, Any]) -> list[Equivalent]:
    """Return what makes a source, a slot or a subscription as *body* says: its DSN left out."""
    return [
        Equivalent("curl", _curl(kind, body)),
        Equivalent("Command", _command(kind, body)),
        Equivalent("Terraform", _terraform(kind, body)),
    ]


def equivalents_of_changes(asked: Mapping[str, str], limit: int) -> list[Equivalent]:
    """Return what asks for the changes that a form's fields, times with their zone, ask for."""
    keys = [line for line in asked["key"].splitlines() if line.strip()]
    keys = ["=".join(part.strip() for part in line.split("=", 1)) for line in keys]
    plain = ("source", "database", "table", "op", "prefix", "xid")
    given = [(name, asked[name]) for name in (*plain, "since", "until", "from_lsn", "upto_lsn")]
    given[3:3] = [("key", key) for key in keys]
    given = [(name, value) for name, value in given if value]
    is_oldest_first = asked["order"] == "oldest"
    command = [["spillway", "changes"]]
    command += [[f"--{name.replace('_', '-')}", value] for name, value in given]
    if is_oldest_first:
        command.append(["--oldest-first"])
    command.append(["--limit", str(limit)])
    if not is_oldest_first:
        given.append(("newest_first", "true"))
    query = [*given, ("limit", str(limit))]
    curl = [
        'curl -G "$SPILLWAY_URL/v1/changes"',
        '-H "Authorization: Bearer $SPILLWAY_TOKEN"',
        *(f"--data-urlencode {shlex.quote(f'{name}={value}')}" for name, value in query),
    ]
    return [Equivalent("Command", _lines(command)), Equivalent("curl", " \\\n  ".join(curl))]


def _curl(kind: str, body: Mapping[str, Any]) -> str:
    if kind == "source":
        body = {**body, "dsn": "DSN"}
    elif body.get("target", {}).get("kind") == "postgres":
        body = {**body, "target": {**body["target"], "dsn": "DSN"}}
    text = shlex.quote(json.dumps(body, ensure_ascii=False))
    if '"DSN"' in text:
        # Out of the quotes and in again; a DSN with a quote or a backslash has to be escaped.
        text = text.replace('"DSN"', f'"\'"${_SHELL[kind]}"\'"', 1)
    return (
        'curl -X POST "$SPILLWAY_URL/v1/' + kind + 's" \\\n'
        '  -H "Authorization: Bearer $SPILLWAY_TOKEN" -H "Content-Type: application/json" \\\n'
        f"  -d {text}"
    )


def _command(kind: str, body: Mapping[str, Any]) -> str:
    words, stdin = {"source": _source, "slot": _slot, "subscription": _subscription}[kind](body)
    return _lines(words) + (f' <<< "${_SHELL[kind]}"' if stdin else "")


def _lines(words: list[list[str]]) -> str:
    """Write a command in which an option and its value stay on one line."""
    return " \\\n  ".join(" ".join(shlex.quote(word) for word in option) for option in words)


def _source(body: Mapping[str, Any]) -> tuple[list[list[str]], bool]:
    words = [["spillway", "source", "add", body["name"] or _UNNAMED, "-"]]
    capture = body["capture"]
    if capture["origin"] != "any":
        words.append(["--origin", capture["origin"]])
    words += [["--table", table] for table in capture["tables"]]
    words += [["--publication", one] for one in capture["publications"]]
    return words, True


def _slot(body: Mapping[str, Any]) -> tuple[list[list[str]], bool]:
    words = [["spillway", "slot", "create", body["slot_name"] or _UNNAMED]]
    words += [[f"--{name}", body[name]] for name in ("source", "database", "plugin")]
    words += [["--option", f"{name}={value}"] for name, value in body.get("options", {}).items()]
    if "start_lsn" in body:
        words.append(["--start-lsn", body["start_lsn"]])
    if body.get("two_phase"):
        words.append(["--two-phase"])
    return words, False


def _subscription(body: Mapping[str, Any]) -> tuple[list[list[str]], bool]:
    words = [["spillway", "subscription", "create", body["name"] or _UNNAMED]]
    words += [[f"--{name}", body[name]] for name in ("source", "database")]
    target = body["target"]
    is_lake = target["kind"] == "lake"
    words += list(_lake(target) if is_lake else _postgres(target))
    words += [["--table", table] for table in body.get("tables") or ()]
    words += [["--publication", one] for one in body.get("publications") or ()]
    if not body.get("copy_data", True):
        words.append(["--no-copy-data"])
    return words, not is_lake


def _lake(target: Mapping[str, Any]) -> Iterator[list[str]]:
    yield ["--path", target.get("path") or "PATH"]
    yield ["--format", target["format"]]
    declared = {option.name: option for option in form_options()}
    for name, value in target.items():
        if name in ("kind", "path", "format"):
            continue
        option = declared.get(name)
        if option is None:
            yield ["--job-option", f"{name}={_plain(value)}"]
        elif isinstance(value, list):
            yield from ([option.option, str(one)] for one in value)
        elif option.kind in SEVERAL:
            for key, of_key in value.items():
                given = of_key if isinstance(of_key, str) else ",".join(of_key)
                yield [option.option, f"{key}={given}"]
        else:
            yield [option.option, _plain(value)]


def _postgres(target: Mapping[str, Any]) -> Iterator[list[str]]:
    yield ["--target-dsn", "-"]
    for name, value in target.items():
        if name not in ("kind", "dsn"):
            yield ["--target-option", f"{name}={_plain(value)}"]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _terraform(kind: str, body: Mapping[str, Any]) -> str:
    label = body.get("name") or body.get("slot_name") or "this"
    values = {name: value for name, value in body.items() if value not in (None, {}, [])}
    variable = ""
    if kind == "source":
        values["dsn"] = _Reference("var.dsn")
        values["capture"] = {
            name: value for name, value in body["capture"].items() if value not in ([], "any")
        }
        values = {name: value for name, value in values.items() if value != {}}
    elif kind == "subscription" and body["target"]["kind"] == "postgres":
        values["target"] = {**body["target"], "dsn": _Reference("var.dsn")}
    if "var.dsn" in str(values):
        variable = 'variable "dsn" {\n  type      = string\n  sensitive = true\n}\n\n'
    lines = "\n".join(f"  {name} = {_hcl(value, 1)}" for name, value in values.items())
    return f'{variable}resource "spillway_{kind}" "{label}" {{\n{lines}\n}}'


class _Reference(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _hcl(value: Any, depth: int) -> str:
    if isinstance(value, _Reference):
        return str(value)
    if isinstance(value, dict):
        pad = "  " * (depth + 1)
        inside = "\n".join(
            f"{pad}{_key(name)} = {_hcl(held, depth + 1)}" for name, held in value.items()
        )
        return f"{{\n{inside}\n{'  ' * depth}}}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_hcl(one, depth) for one in value) + "]"
    text = json.dumps(value, ensure_ascii=False)
    # A template of HCL begins so.
    return text.replace("${", "$${").replace("%{", "%%{")


def _key(name: str) -> str:
    return name if name.isidentifier() else json.dumps(name)
