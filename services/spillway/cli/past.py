"""How a source, a slot or a subscription was: what their ``metrics`` commands have in common."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer

from spillway.cli.answer import Answer, Columns, Rows
from spillway.cli.connection import call
from spillway.declarations.command_line import duration

Range = Annotated[
    timedelta,
    typer.Option(
        "--range",
        parser=duration,
        metavar="TIME",
        help="How far back: 12h, 7d, 30d.",
        show_default="24h",
    ),
]
Step = Annotated[
    timedelta | None,
    typer.Option(
        "--step",
        parser=duration,
        metavar="TIME",
        help="How long a line's stretch of time is: 2m or more for a day, 10m for a week, 1h for "
        "a month. Unless it is given, some two dozen lines.",
    ),
]
#: lines, unless a step is given
_LINES: Final = 24
# What the rate is of has a unit so.
_BYTES: Final = "bytes_per_second"
_CHANGES: Final = "changes_per_second"
_RANKED: Final = ("at", "lag_seconds", "lag_bytes", _BYTES, _CHANGES, "retained_bytes")


def past(things: str, name: str, reach: timedelta, step: timedelta | None) -> Answer:
    """Ask for the metrics of one of *things*; the largest of each stretch of time."""
    step = step or reach / _LINES
    query = {"range": _seconds(reach), "step": _seconds(step)}
    answer = call("GET", things, name, "metrics", query=query)
    rate = _CHANGES if things == "subscriptions" else _BYTES
    metrics = {rate if key == "rate" else key: values for key, values in answer["metrics"].items()}
    begin, step_s = datetime.fromisoformat(answer["since"]), answer["step_s"]
    length = len(next(iter(metrics.values())))
    rows: list[dict[str, Any]] = [
        {
            "at": (begin + timedelta(seconds=step_s * number)).astimezone(UTC).isoformat(),
            **{metric: values[number] for metric, values in metrics.items()},
        }
        for number in range(length)
    ]
    names = ("at", *metrics)
    columns = Columns(names, [column for column in _RANKED if column in names])
    return Answer(answer, [row["at"] for row in rows], [Rows(rows, columns)])


def _seconds(time: timedelta) -> str:
    return f"{max(1, int(time.total_seconds()))}s"
