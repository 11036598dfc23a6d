"""What PostgreSQL and the service would refuse anyhow, said before anything is asked of them.

Only rules that can't depend on the service's release or its database are here; the rest is the
service's to say.
"""

from __future__ import annotations

import json
import re
from typing import Final

from terraform_provider_spillway.schema import as_number

_LSN: Final = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")
_SLOT_NAME: Final = re.compile(r"[a-z0-9_]+")
_SUBSCRIPTION_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")
_SOURCE_NAME: Final = re.compile(r"[a-z0-9_]{1,50}")


def slot_name(name: str) -> str | None:
    """PostgreSQL's rules for names of replication slots."""
    if not name:
        return "A replication slot's name can't be empty."
    if len(name.encode()) > 63:
        return f'The replication slot name "{name}" is too long: 63 bytes at most.'
    if not _SLOT_NAME.fullmatch(name):
        return (
            f'The replication slot name "{name}" contains an invalid character: only lower case '
            "letters, numbers "
            "and the underscore are allowed."
        )
    return None


def subscription_name(name: str) -> str | None:
    """The service's rules for names of subscriptions."""
    if not _SUBSCRIPTION_NAME.fullmatch(name):
        return (
            f'The subscription name "{name}" must be 1 to 63 lower case letters, digits and '
            "underscores."
        )
    return None


def source_name(name: str) -> str | None:
    """The service's rules for names of sources."""
    if not _SOURCE_NAME.fullmatch(name):
        return (
            f'The source name "{name}" must be 1 to 50 lower case letters, digits and underscores.'
        )
    return None


def lsn(text: str) -> str | None:
    """A WAL position as PostgreSQL prints it."""
    if not _LSN.fullmatch(text):
        return (
            f"{text!r} is not an LSN: two hexadecimal numbers with a slash between, 0/16B3748 for "
            "one."
        )
    return None


def not_empty(text: str) -> str | None:
    """A name of something that must be named."""
    return None if text else "It can't be empty."


def positive(number: float | str) -> str | None:
    """A time."""
    return None if as_number(number) > 0 else f"{number} is not a time: it must be more than 0."


def not_negative(number: float | str) -> str | None:
    """A time that may be none."""
    return None if as_number(number) >= 0 else f"{number} is negative."


def published_names(names: list[str]) -> str | None:
    """What a subscription names: ``schema.table`` as the catalog has it."""
    for name in names:
        schema, dot, table = (name or "").partition(".")
        if not (schema and dot and table):
            return f"{name!r} is not schema.table."
    return None


def by_table(lists: dict[str, list[str]]) -> str | None:
    """What is said of each table: its columns, by ``schema.table``."""
    return published_names(list(lists))


def json_object(text: str) -> str | None:
    """An object, as jsonencode() writes one."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"It is no JSON: {error}."
    return None if isinstance(value, dict) else "It is no JSON object."


def table_names(names: list[str]) -> str | None:
    """What a capture filter or a subscription names: ``schema.table``, some also ``schema.*``."""
    for name in names:
        if name is None or not _qualified(name):
            return f"{name!r} is not schema.table."
    return None


def _qualified(name: str) -> bool:
    """Whether a dot outside of quotes parts the name."""
    outside = re.sub(r'"(?:[^"]|"")*"', "q", name)
    schema, dot, table = outside.partition(".")
    return bool(schema and dot and table) and "." not in table and '"' not in outside
