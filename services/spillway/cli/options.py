"""Arguments that several commands take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import typer

from spillway.errors import InvalidRequest


def grpc_address(given: str) -> str:
    """Return an address of gRPC's that can be one.

    Raises:
        InvalidRequest: it is a URL, or has no port.
    """
    if given.startswith(("http://", "https://")) or ":" not in given:
        raise InvalidRequest(
            f"{given!r} is no address of gRPC's",
            hint="Give host:port, 127.0.0.1:50051 for one, as --grpc or in SPILLWAY_GRPC; a URL is REST's (SPILLWAY_URL).",
        )
    return given


class Origin(StrEnum):
    """Which changes count, by where they first came from."""

    ANY = "any"
    NONE = "none"


PluginOptions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="A plugin option; may be repeated."),
]
