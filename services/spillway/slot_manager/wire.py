"""Field types of requests and responses: PostgreSQL's values in JSON."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator, WithJsonSchema

from spillway.errors import InvalidLsn
from spillway.pg.lsn import Lsn

#: PostgreSQL's options of an output plugin: text to text.
Options = dict[str, str]


def _lsn(value: Any) -> Lsn:
    if isinstance(value, Lsn):
        return value
    if not isinstance(value, str):
        raise InvalidLsn(str(value))
    return Lsn.parse(value)


_LSN_SCHEMA: Final = {
    "type": "string",
    "pattern": "^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$",
    "description": "A WAL position in PostgreSQL's text form.",
    "examples": ["0/16B3748"],
}

#: A text such as ``0/16B3748``. A bad one raises InvalidLsn, which passes through pydantic as it is.
LsnText = Annotated[
    Lsn,
    PlainValidator(_lsn),
    PlainSerializer(str, return_type=str),
    WithJsonSchema(_LSN_SCHEMA),
]


class RequestModel(BaseModel):
    """A request's body: what is not known is refused, and nothing is converted (``"yes"`` is no bool)."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ResponseModel(BaseModel):
    """A response's body, made of the engine's dataclasses by attribute."""

    model_config = ConfigDict(from_attributes=True)
