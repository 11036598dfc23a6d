"""Field types of requests and responses: PostgreSQL's values in JSON."""

from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

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

#: A text such as ``0/16B3748``. A bad one raises InvalidLsn, which passes through pydantic as it
#: is.
LsnText = Annotated[
    Lsn,
    PlainValidator(_lsn),
    PlainSerializer(str, return_type=str),
    WithJsonSchema(_LSN_SCHEMA),
]


def _check_texts(value: Any) -> None:
    # Bodies are small, and JSON's reader bounds their depth.
    if isinstance(value, str):
        if "\0" in value or not _is_encodable(value):
            msg = "a text has a NUL, or half of a surrogate pair"
            raise ValueError(msg)
    elif isinstance(value, dict):
        for key, held in value.items():
            _check_texts(key)
            _check_texts(held)
    elif isinstance(value, list):
        for held in value:
            _check_texts(held)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class RequestModel(BaseModel):
    """A request's body: what is not known is refused, and nothing is converted (``"yes"`` is no
    bool).
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        """Refuse texts that are none in PostgreSQL: with a NUL, or half of a surrogate pair, which
        JSON can escape.
        """
        _check_texts(value)
        return value


class ResponseModel(BaseModel):
    """A response's body, made of the engine's dataclasses by attribute."""

    model_config = ConfigDict(from_attributes=True)
