"""The plots, as PNG. Drawn without a display."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

from bench.results import POSTGRESQL, SPILLWAY
from bench.throughput import GRPC, GRPC_COLD, IN_PROCESS, PEEK, RECVLOGICAL
from bench.wire import PG_PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.results import Results

mpl.use("Agg")
from matplotlib import pyplot as plt

_SIZE: Final = (9, 4.5)
_COLOURS: Final = {
    (POSTGRESQL, PEEK): "#7a9cc6",
    (POSTGRESQL, RECVLOGICAL): "#31587f",
    (SPILLWAY, IN_PROCESS): "#f2b263",
    (SPILLWAY, GRPC): "#d9772b",
    (SPILLWAY, GRPC_COLD): "#8f4a12",
}
#: of a client of our port, which is no bar of its own
_ON_PORT: Final = "#a33a5e"


def draw(results: Results, directory: Path) -> list[str]:
    """Draw what was measured; return the files' names."""
    names = []
    for name, plot in _plots(results):
        figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
        plot(axes)
        figure.savefig(directory / f"{name}.png", dpi=110)
        plt.close(figure)
        names.append(f"{name}.png")
    return names


def _plots(results: Results) -> Iterator[tuple[str, Callable[[Any], None]]]:
    if results.measurements:
        yield (
            "rows-a-second",
            lambda axes: _bars(axes, results, "rows a second, pgoutput, one slot", "rows_per_s"),
        )
        yield (
            "rows-a-cpu-second",
            lambda axes: _bars(
                axes, results, "rows a CPU second of all, pgoutput, one slot", "rows_per_cpu_s"
            ),
        )
        yield "memory", lambda axes: _memory(axes, results)
    if "latency" in results.figures:
        yield "commit-to-delivery", lambda axes: _latency(axes, results.figures["latency"])
    if "primary" in results.figures:
        yield "cpu-of-the-primary", lambda axes: _primary(axes, results.figures["primary"])


def _bars(axes: Any, results: Results, title: str, attribute: str) -> None:
    keys = list(dict.fromkeys(m.wal_range for m in results.measurements))
    width = 0.8 / len(_COLOURS)
    for i, ((side, how), colour) in enumerate(_COLOURS.items()):
        places, heights = [], []
        for place, key in enumerate(keys):
            measurement = results.find(key, side, how, "pgoutput")
            # So little that the clock saw nothing has no bar.
            if measurement is not None and measurement.total_cpu_s:
                places.append(place + (i - 2) * width)
                heights.append(getattr(measurement, attribute))
        axes.bar(places, heights, width, color=colour, label=f"{side}, {how}")
    axes.set_xticks(range(len(keys)), keys)
    axes.set_yscale("log")
    axes.set_title(title)
    axes.set_xlabel("WAL range")
    axes.legend(fontsize="small")


def _memory(axes: Any, results: Results) -> None:
    keys = list(dict.fromkeys(m.wal_range for m in results.measurements))
    kinds = (
        (POSTGRESQL, PEEK, "server"),
        (SPILLWAY, IN_PROCESS, "decoder"),
        (SPILLWAY, GRPC_COLD, "service"),
    )
    for i, (side, how, who) in enumerate(kinds):
        found = [
            (place, results.find(key, side, how, "pgoutput")) for place, key in enumerate(keys)
        ]
        axes.bar(
            [place + (i - 1) * 0.25 for place, m in found if m],
            [m.peak_bytes[who] / 2**20 for _, m in found if m],
            0.25,
            color=_COLOURS[side, how],
            label=f"{side}, {how}",
        )
    axes.set_xticks(range(len(keys)), keys)
    axes.set_title("peak memory, MB")
    axes.set_xlabel("WAL range")
    axes.legend(fontsize="small")


def _latency(axes: Any, figures: dict[str, Any]) -> None:
    grpc, wired = figures[SPILLWAY], figures[PG_PORT]
    for curve, name, colour in (
        (grpc[POSTGRESQL]["curve_ms"], "pg_recvlogical", _COLOURS[POSTGRESQL, RECVLOGICAL]),
        (grpc[SPILLWAY]["curve_ms"], "Spillway over gRPC", _COLOURS[SPILLWAY, GRPC]),
        (wired[PG_PORT]["curve_ms"], PG_PORT, _ON_PORT),
    ):
        shares = [100 * i / (len(curve) - 1) for i in range(len(curve))]
        axes.plot(curve, shares, color=colour, label=name)
    axes.set_xscale("log")
    axes.set_title(f"from commit to delivery at {grpc['rate']:,} commits a second")
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("% of rows delivered within")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _primary(axes: Any, figures: dict[str, Any]) -> None:
    names = list(figures["cpu_s"])
    colours = [
        _COLOURS[SPILLWAY, GRPC] if name.startswith(SPILLWAY) else _COLOURS[POSTGRESQL, RECVLOGICAL]
        for name in names
    ]
    axes.bar(names, [figures["cpu_s"][name]["median"] for name in names], color=colours)
    axes.set_title(
        f"CPU seconds of the primary during {figures['transactions']:,} pgbench transactions"
    )
