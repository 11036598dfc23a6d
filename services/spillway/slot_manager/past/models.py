"""The past on the wire."""

from datetime import UTC, datetime

from pydantic import Field

from spillway.slot_manager.json_fields import ResponseModel
from spillway.watch.past import METRICS, PastSeries


class PastView(ResponseModel):
    """How something was: a number for each step, the oldest first; null: not known."""

    kind: str = Field(description="source, slot or subscription.")
    name: str
    since: datetime = Field(description="When the first step began; the others follow at once.")
    step_s: int = Field(description="How long a step is, in seconds.")
    metrics: dict[str, list[float | None]] = Field(
        description="By the metric's name, the largest that it was in each step: "
        + "; ".join(
            f"of a {kind} " + ", ".join(f"`{name}` ({what})" for name, what in metrics.items())
            for kind, metrics in METRICS.items()
        )
        + "."
    )


def past_view(series: PastSeries) -> PastView:
    """Return a series as it is shown."""
    return PastView(
        kind=series.kind,
        name=series.name,
        since=datetime.fromtimestamp(series.times[0], UTC),
        step_s=series.step_s,
        metrics={name: list(values) for name, values in series.values.items()},
    )
