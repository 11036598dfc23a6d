"""Findings on the wire."""

from datetime import datetime

from pydantic import Field

from spillway.slot_manager.json_fields import ResponseModel


class FindingView(ResponseModel):
    """Something to mend."""

    severity: str = Field(description="bad: something stands still; warn: it soon may.")
    code: str = Field(description="What kind of thing is wrong; stable, alert rules name it.")
    subject: str = Field(
        description="What it is wrong with: a name, of a database `source/database`, of a table "
        "`subscription/schema.table`. The same code of the same subject is the same thing."
    )
    source: str | None
    slot: str | None
    subscription: str | None
    title: str
    detail: str
    remedy: str = Field(description="What to do about it, as a problem's hint.")
    page: str = Field(description="The path of the page about it.")
    since: datetime | None = Field(description="Since when it is so; null: not known.")


class Unknown(ResponseModel):
    """A finding of which it is not known whether there is one."""

    code: str
    subject: str


class FindingList(ResponseModel):
    """What is wrong, as of now."""

    findings: list[FindingView] = Field(description="The worst first.")
    unknown: list[Unknown] = Field(
        description="What is not known just now: that it is not among the findings says nothing."
    )
