"""``spillway certify``: prove on a server of one's own that decoding equals PostgreSQL's.

Exit codes: 0 no difference, 1 a difference or an error, 130 interrupted before anything differed.
"""

from __future__ import annotations

import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway.certify.report import Report
    from spillway.certify.wire.report import WireReport


def certify(
    dsn: Annotated[
        str, typer.Option(help="libpq's, of the database; a role with LOGIN and REPLICATION.")
    ],
    duration: Annotated[
        float, typer.Option(min=0, help="Follow live traffic for so many seconds.")
    ] = 60.0,
    workload: Annotated[
        bool,
        typer.Option(
            "--workload",
            help="Run the built-in workload instead, in a database of its own that is dropped at "
            "the end.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="What the workload is made from.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Statements of the workload.")] = 2000,
    publication: Annotated[
        list[str] | None,
        typer.Option(help="Compare pgoutput with this publication too; may be repeated."),
    ] = None,
    wire: Annotated[
        str | None,
        typer.Option(
            help="A running service's PostgreSQL port, as a libpq DSN of the same database: "
            "compare what it sends with what the server's walsender sends, byte for byte.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Report as a JSON object.")] = False,
) -> None:
    """Decode a live server beside its own logical decoding, compare every line, report."""
    publications = tuple(publication or ())
    run = _run(dsn, wire, duration, seed if workload else None, steps, publications)
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def interrupt(_number: int, _frame: Any) -> None:
        # The second one has the effect that it has without us; slots go with their sessions all the
        # same.
        stop.set()
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, interrupt)
    try:
        report = run(lambda text: typer.echo(text, err=True), stop)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    typer.echo(report.as_json() if json else report.as_text())
    raise typer.Exit(1 if not report.equal else 130 if report.interrupted else 0)


def _run(
    dsn: str,
    wire: str | None,
    duration_s: float,
    seed: int | None,
    steps: int,
    publications: tuple[str, ...],
) -> Callable[[Callable[[str], None], threading.Event], Report | WireReport]:
    """Return what is to be done; it is given where to say how it goes, and what stops it."""
    if wire is None:
        from spillway.certify.run import CertifySettings, certify  # noqa: PLC0415 - heavy

        return partial(certify, CertifySettings(dsn, duration_s, seed, steps, publications))
    from spillway.certify.wire.run import WireSettings, certify_wire  # noqa: PLC0415 - heavy

    return partial(certify_wire, WireSettings(dsn, duration_s, seed, steps, publications, wire))
