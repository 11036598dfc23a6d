"""Users on the wire. A password or a verifier comes in, and neither ever goes out."""

from datetime import datetime
from typing import Any, Self

from pydantic import Field, model_validator

from spillway.slot_manager.json_fields import RequestModel, ResponseModel

_PASSWORD = "The user's password; only its SCRAM-SHA-256 verifier is kept."  # noqa: S105 - a description
_VERIFIER = "Instead of a password: what pg_authid.rolpassword has."
_DATABASES = "Those that the user is for: `source/database`, `source/*`, or `*` for all."
_SLOTS = "The only slots of these databases that the user may read, or drop; null: all of them."


class CreateUser(RequestModel):
    """Who is to come in over PostgreSQL's own protocol."""

    name: str = Field(examples=["debezium"])
    password: str | None = Field(default=None, description=_PASSWORD)
    verifier: str | None = Field(default=None, description=_VERIFIER)
    databases: list[str] = Field(description=_DATABASES, examples=[["shop/shop"]])
    slots: list[str] | None = Field(default=None, description=_SLOTS)
    manage_slots: bool = Field(default=False, description="Whether it may make and drop slots.")
    run_sql: bool = Field(
        default=False,
        description="Whether it may run SQL on the source, with the source's credential.",
    )


class AlterUser(RequestModel):
    """What is to change; what is left out stays."""

    password: str | None = Field(default=None, description=_PASSWORD)
    verifier: str | None = Field(default=None, description=_VERIFIER)
    databases: list[str] | None = Field(default=None, description=_DATABASES)
    slots: list[str] | None = Field(default=None, description=_SLOTS)
    manage_slots: bool | None = None
    run_sql: bool | None = None

    @model_validator(mode="after")
    def _not_null(self) -> Self:
        for name in self.model_fields_set - {"slots", "password", "verifier"}:
            if getattr(self, name) is None:
                msg = f"{name} can't be null"
                raise ValueError(msg)
        return self

    def changes(self) -> dict[str, Any]:
        """Give what was said."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class UserView(ResponseModel):
    """A user."""

    name: str
    databases: list[str]
    slots: list[str] | None
    manage_slots: bool
    run_sql: bool
    created_at: datetime


class UserList(ResponseModel):
    """All users."""

    users: list[UserView]
