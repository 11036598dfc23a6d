"""pgoutput's options: what each version knows, and PostgreSQL's own words for what it refuses.

Versions differ in what there is (two_phase and protocol 3 came with 15; origin, parallel streaming
and protocol 4 with 16), in how a number is read, and in when and how something missing is noticed.

Five options are not PostgreSQL's: ``spillway.all_tables`` stands for publication_names, and
publishes as a publication FOR ALL TABLES would that had always been there; ``spillway.ddl`` asks
for events of DDL; ``spillway.origin`` is origin for every version, also those whose pgoutput has no
such option; with ``spillway.whole_prepared`` prepared transactions come whole when they commit,
from a slot with two_phase, too; ``spillway.send_encoding`` is what PostgreSQL has the session for:
what text within values in their send format is converted from and to, "EUC_JP/SJIS" for one. The
port of PostgreSQL's protocol gives it, and converts everything else itself.

Source: parse_output_parameters, pgoutput_startup (src/backend/replication/pgoutput/pgoutput.c);
defGetBoolean (src/backend/commands/define.c); defGetStreamingMode (commands/subscriptioncmds.c)
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.errors import InvalidOption
from spillway.pg.character_maps import WIDE_ENCODINGS
from spillway.pg.client_text import (
    MULE_INTERNAL,
    SEND_ENCODING,
    SQL_ASCII,
    UTF8,
    is_converted,
)
from spillway.pg.encoding import SERVER_ENCODINGS
from spillway.pg.identifier import split_identifiers
from spillway.pg.versions import Since, refuses_empty_proto_version

if TYPE_CHECKING:
    from collections.abc import Mapping

_STREAM_PROTOCOL: Final = 2
_TWO_PHASE_PROTOCOL: Final = 3
_PARALLEL_STREAM_PROTOCOL: Final = 4

_UINT32_MAX: Final = (1 << 32) - 1
_UINT64_MAX: Final = (1 << 64) - 1
#: What C's isspace takes for one.
_SPACE: Final = r"[ \t\n\v\f\r]*"
_HINT: Final = "pgoutput needs proto_version and publication_names."
ALL_TABLES: Final = "spillway.all_tables"
ORIGIN: Final = "spillway.origin"
#: options that are not PostgreSQL's, by the fields that they set
_OUR_OWN: Final = {
    ALL_TABLES: "all_tables",
    "spillway.ddl": "ddl",
    "spillway.whole_prepared": "whole_prepared",
    SEND_ENCODING: "send_encoding",
}


class StreamingMode(enum.Enum):
    """Whether large transactions are streamed while they are in progress."""

    OFF = "off"
    ON = "on"
    #: with what a consumer needs to apply them at once
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class PgoutputOptions:
    """The options of one slot or reader."""

    proto_version: int = 0
    publication_names: tuple[str, ...] = ()
    binary: bool = False
    messages: bool = False
    streaming: StreamingMode = StreamingMode.OFF
    two_phase: bool = False
    #: prepared transactions come when they commit, whatever the slot says
    whole_prepared: bool = False
    #: leave out what came in through a replication origin
    only_local: bool = False
    #: every table, as a publication FOR ALL TABLES has them; without publication_names
    all_tables: bool = False
    #: events of DDL, as logical messages
    ddl: bool = False
    #: the database's encoding and the client's, for text in the send format; None: it is UTF-8
    send_encoding: tuple[str, str] | None = None


def parse_options(
    options: Mapping[str, str], server_version_num: int, *, complete: bool = True
) -> PgoutputOptions:
    """Read *options* as a server of that version does.

    Args:
        options: names and values, in the order in which they were given: the first mistake counts.
        server_version_num: PG_VERSION_NUM of the server.
        complete: all options are there. Otherwise others may come over them; only those that are
            there are looked at.

    Raises:
        InvalidOption: an option or its value is not known, is missing, or does not go with another.
    """
    values: dict[str, object] = {}
    for option, value in options.items():
        match option:
            case "proto_version":
                values[option] = _proto_version(value, server_version_num)
            case "publication_names":
                names = split_identifiers(value)
                if names is None:
                    raise _refused(
                        "invalid publication_names syntax",
                        "Give names with commas between; those that are no plain lower-case words "
                        "in double quotes.",
                        option,
                    )
                values[option] = names
            case "binary" | "messages":
                values[option] = _boolean(option, value)
            case "streaming":
                values[option] = _streaming(value, server_version_num)
            case "two_phase" if server_version_num >= Since.PGOUTPUT_TWO_PHASE:
                values[option] = _boolean(option, value)
            case "origin" | "spillway.origin" if (
                option == ORIGIN or server_version_num >= Since.PGOUTPUT_ORIGIN_AND_PARALLEL
            ):
                values["only_local"] = _origin(value)
            case _ if option in _OUR_OWN:
                read = _send_encoding if option == SEND_ENCODING else _boolean
                values[_OUR_OWN[option]] = read(option, value)
            case _:
                raise _refused(
                    f"unrecognized pgoutput option: {option}",
                    "pgoutput knows proto_version, publication_names, binary, messages and "
                    "streaming, from PostgreSQL 15 on two_phase, from 16 on origin.",
                    option,
                )
    if values.get("all_tables"):
        if values.get("publication_names"):
            raise _refused(
                f"{ALL_TABLES} does not go with publication_names",
                f"Leave one of them out; {ALL_TABLES} = off gives it back to publication_names.",
                ALL_TABLES,
            )
        values["publication_names"] = ()
    if complete and server_version_num >= Since.PGOUTPUT_NAMES_MISSING_OPTIONS:
        for option in ("proto_version", "publication_names"):
            if option not in values:
                raise _refused(f'option "{option}" missing', _HINT, option)
    parsed = PgoutputOptions(**values)  # type: ignore[arg-type] # each from the function for its name
    if complete:
        _check(parsed, server_version_num)
    return parsed


def _check(options: PgoutputOptions, server_version_num: int) -> None:
    """See whether the options go together, in the order in which a server looks."""
    # As C prints it with %d.
    version = (options.proto_version + (1 << 31)) % (1 << 32) - (1 << 31)
    parallel = server_version_num >= Since.PGOUTPUT_ORIGIN_AND_PARALLEL
    newest = 4 if parallel else 3 if server_version_num >= Since.PGOUTPUT_TWO_PHASE else 2
    who = "server only supports" if parallel else "we only support"
    if options.proto_version > newest:
        raise _refused(
            f"client sent proto_version={version} but {who} protocol {newest} or lower",
            f"Give proto_version a number from 1 to {newest}.",
            "proto_version",
        )
    if options.proto_version < 1:
        raise _refused(
            f"client sent proto_version={version} but {who} protocol 1 or higher",
            f"Give proto_version a number from 1 to {newest}.",
            "proto_version",
        )
    named = options.publication_names or options.all_tables
    if not named and server_version_num < Since.PGOUTPUT_NAMES_MISSING_OPTIONS:
        raise _refused("publication_names parameter missing", _HINT, "publication_names")
    requested = f"requested proto_version={version} does not support"
    if options.streaming is StreamingMode.ON and version < _STREAM_PROTOCOL:
        raise _refused(
            f"{requested} streaming, need {_STREAM_PROTOCOL} or higher",
            "Raise proto_version, or turn streaming off.",
            "streaming",
        )
    if options.streaming is StreamingMode.PARALLEL and version < _PARALLEL_STREAM_PROTOCOL:
        raise _refused(
            f"{requested} parallel streaming, need {_PARALLEL_STREAM_PROTOCOL} or higher",
            "Raise proto_version, or give streaming = on.",
            "streaming",
        )
    if options.two_phase and version < _TWO_PHASE_PROTOCOL:
        raise _refused(
            f"{requested} two-phase commit, need {_TWO_PHASE_PROTOCOL} or higher",
            "Raise proto_version, or turn two_phase off.",
            "two_phase",
        )


def _proto_version(value: str, server_version_num: int) -> int:
    if server_version_num >= Since.PGOUTPUT_TWO_PHASE:
        # strtoul: nothing at all is 0 where that is not refused, and a minus sign goes around.
        match = re.fullmatch(rf"(?:{_SPACE}([+-]?)([0-9]+))?", value)
        if not value and refuses_empty_proto_version(server_version_num):
            match = None
        number = int(match[2] or 0) if match else _UINT64_MAX + 1
        valid = number <= _UINT64_MAX
        if match and match[1] == "-":
            number = -number % (_UINT64_MAX + 1)
    else:
        match = re.fullmatch(rf"{_SPACE}([+-]?)([0-9]+){_SPACE}", value)
        number = int(match[1] + match[2]) if match else 0
        valid = match is not None and -(1 << 63) <= number < 1 << 63
    if not valid:
        raise _refused("invalid proto_version", "Give a number.", "proto_version")
    if not 0 <= number <= _UINT32_MAX:
        raise _refused(
            f'proto_version "{value}" out of range', "Give a small number.", "proto_version"
        )
    return number


def _boolean(option: str, value: str) -> bool:
    match value.lower():
        case "true" | "on":
            return True
        case "false" | "off":
            return False
    raise _refused(f"{option} requires a Boolean value", "Give on or off.", option)


def _streaming(value: str, server_version_num: int) -> StreamingMode:
    if server_version_num < Since.PGOUTPUT_ORIGIN_AND_PARALLEL:
        return StreamingMode.ON if _boolean("streaming", value) else StreamingMode.OFF
    match value.lower():
        case "true" | "on":
            return StreamingMode.ON
        case "false" | "off":
            return StreamingMode.OFF
        case "parallel":
            return StreamingMode.PARALLEL
    raise _refused(
        'streaming requires a Boolean value or "parallel"', "Give on, off or parallel.", "streaming"
    )


def _origin(value: str) -> bool:
    match value.lower():
        case "none":
            return True
        case "any":
            return False
    raise _refused(f'unrecognized origin value: "{value}"', "Give none or any.", "origin")


def _send_encoding(option: str, value: str) -> tuple[str, str]:
    server, _, client = value.partition("/")
    names = {UTF8, SQL_ASCII, MULE_INTERNAL, *SERVER_ENCODINGS, *WIDE_ENCODINGS}
    if not {server, client} <= names or not is_converted(server, client):
        raise _refused(
            f'"{value}" is no conversion of text',
            "Give the database's encoding and the client's, LATIN1/UTF8 for one; leave it out for "
            "UTF8.",
            option,
        )
    return server, client


def _refused(message: str, hint: str, option: str) -> InvalidOption:
    return InvalidOption(message, hint=hint, option=option)
