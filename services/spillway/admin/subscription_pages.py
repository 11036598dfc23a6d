"""A subscription: how it is, its tables, its conflicts, the end of its log, what can be done with
it, and the form that creates one.

Conflicts are listed as of when they were asked for, with a page for each: both rows side by side,
and the command that has the next one of its kind resolved otherwise.

The form's tables and publications come from the mirrored catalog, each table with what would stand
in the way of following it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from spillway.admin.conflict_view import conflict_view, remedy_of
from spillway.admin.equivalents import equivalents_of
from spillway.admin.forms import Form, confirm_name, databases_of, done
from spillway.admin.live import changed_regions
from spillway.admin.page_group import PageGroup
from spillway.declarations.delta_names import needs_column_mapping
from spillway.declarations.lake_options import SEVERAL, form_options, job_options
from spillway.declarations.postgres_options import POSTGRES_OPTIONS
from spillway.errors import InvalidRequest, SpillwayError, UnknownSubscription
from spillway.subscriber.model import SubscriptionSpec
from spillway.subscriber.stats import stats_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request

    from spillway.declarations.lake_options import LakeOption
    from spillway.service.model import TableInfo
    from spillway.subscriber.model import SubscriptionInfo, TableState

_LOG_LINES: Final = 60
#: The formats as the form names them, the one that is chosen first.
_FORMATS: Final = {"delta": "Delta Lake", "iceberg": "Iceberg", "parquet": "Parquet"}
#: Tables that the form offers at once.
_TABLES_OFFERED: Final = 500
#: Columns that are named of a table.
_COLUMNS_NAMED: Final = 4
#: How long the source may take to say how large they are.
_SIZES_S: Final = 8.0
#: Rows of the page's lists; commands and REST have the rest.
_TABLES_SHOWN: Final = 500
_CONFLICTS_LISTED: Final = 50
#: Of the page, what changes while one looks.
_REGIONS: Final = ("state", "figures", "facts", "tables", "verification", "counts", "log")
#: A program of kind postgres tells of itself twice a second.
_SILENT_S: Final = 30.0


class SubscriptionPages(PageGroup):
    """``/ui/subscriptions``."""

    def routes(self) -> list[Route]:
        one = "/ui/subscriptions/{name}"
        return [
            Route("/ui/subscriptions", self._create, methods=["POST"]),
            Route("/ui/subscriptions/new", self._new),
            Route("/ui/subscriptions/tables", self._choice),
            Route("/ui/subscriptions/tables/more", self._more),
            Route("/ui/subscriptions/tables/sizes", self._sizes),
            Route("/ui/subscriptions/check", self._check, methods=["POST"]),
            Route("/ui/subscriptions/as-commands", self._as_commands, methods=["POST"]),
            Route(one, self._show),
            Route(f"{one}/conflicts", self._conflicts),
            Route(f"{one}/conflicts/{{id:path}}", self._conflict),
            Route(f"{one}/enable", self._enable, methods=["POST"]),
            Route(f"{one}/disable", self._disable, methods=["POST"]),
            Route(f"{one}/alter", self._alter, methods=["POST"]),
            Route(f"{one}/refresh", self._refresh, methods=["POST"]),
            Route(f"{one}/tables/pause", self._pause_table, methods=["POST"]),
            Route(f"{one}/tables/resume", self._resume_table, methods=["POST"]),
            Route(f"{one}/tables/resync", self._resync_table, methods=["POST"]),
            Route(f"{one}/tables/cancel-resync", self._cancel_resync, methods=["POST"]),
            Route(f"{one}/verify", self._verify, methods=["POST"]),
            Route(f"{one}/skip", self._skip, methods=["POST"]),
            Route(f"{one}/drop", self._drop, methods=["POST"]),
            Route("/ui/live/subscriptions/{name}", self._live),
        ]

    # -- looking ------------------------------------------------------------------------------

    async def _show(self, request: Request) -> Response:
        name = request.path_params["name"]
        view = await self._sampler.look()
        one = view.subscription(name)
        if one is None:
            raise UnknownSubscription(name)
        return self._pages.page(
            request,
            "subscription.html",
            **self._live_at(f"/ui/live/subscriptions/{name}"),
            note=request.query_params.get("note", ""),
            anew=request.query_params.get("anew", ""),
            job=_job_of(one.target),
            lake_options=_options_with_lines(str(one.target.get("format", ""))),
            postgres=_postgres_lines(one.target),
            listed=await self._listed(request, one),
            **await self._values(one),
        )

    async def _conflicts(self, request: Request) -> Response:
        """Give the list of conflicts, filtered."""
        one = await self._subscriptions.get(request.path_params["name"])
        listed = await self._listed(request, one)
        return HTMLResponse(
            self._pages.text("subscription/conflict_list.html", one=one, listed=listed)
        )

    async def _listed(self, request: Request, one: SubscriptionInfo) -> dict[str, Any]:
        """Return the last conflicts, of the kind and table that the query names."""
        if one.target.get("kind") != "postgres":
            return {}
        kind = request.query_params.get("kind", "").strip()
        table = request.query_params.get("table", "").strip()
        found = await self._subscriptions.conflicts(
            one.name, _CONFLICTS_LISTED + 1, kind=kind or None, table=table or None
        )
        return {
            "kind": kind,
            "table": table,
            "conflicts": found[:_CONFLICTS_LISTED],
            "more": len(found) > _CONFLICTS_LISTED,
            "at": datetime.now(UTC),
        }

    async def _conflict(self, request: Request) -> Response:
        """Show one conflict."""
        one = await self._subscriptions.get(request.path_params["name"])
        found = await self._subscriptions.conflict(one.name, request.path_params["id"])
        return self._pages.page(
            request,
            "conflict.html",
            live="",
            one=one,
            conflict=conflict_view(found),
            remedy=remedy_of(one, found),
        )

    async def _live(self, request: Request) -> Response:
        name = request.path_params["name"]

        async def render() -> dict[str, str] | None:
            one = self._sampler.view.subscription(name)
            if one is None:
                return None
            try:
                values = await self._values(one)
            except UnknownSubscription:
                return None
            return {
                region: self._pages.text(f"subscription/{region}.html", **values)
                for region in _REGIONS
            }

        return self._streams.respond(changed_regions(render, self._sampler))

    async def _values(self, one: SubscriptionInfo) -> dict[str, Any]:
        link = f"/ui/subscriptions/{one.name}"
        view = self._sampler.view
        findings = view.findings
        return {
            "view": view,
            "one": one,
            "stats": stats_of(one),
            "is_silent": _is_silent(one),
            "tables": _shown_tables(one),
            "example": _example_table(one),
            "lines": await self._subscriptions.log(one.name, _LOG_LINES),
            "findings": [finding for finding in findings if finding.link == link],
        }

    # -- creating -----------------------------------------------------------------------------

    async def _new(self, request: Request) -> Response:
        view = await self._sampler.look()
        first = view.sources[0].info if view.sources else None
        chosen = request.query_params.get("source", first.name if first else "")
        found = databases_of(view, chosen)
        return self._pages.page(
            request,
            "new_subscription.html",
            live="",
            view=view,
            chosen=chosen,
            lake_formats=_FORMATS,
            lake_options=form_options(),
            job_options=job_options(),
            postgres_options=[o for o in POSTGRES_OPTIONS if o.name != "create_tables"],
            **found,
            **await self._choices(chosen, found["database"]),
        )

    async def _choice(self, request: Request) -> Response:
        """Give the tables and publications of another source or database."""
        query = request.query_params
        source, database = query.get("source", ""), query.get("database", "").strip()
        field = ""
        if request.headers.get("hx-trigger-name") == "source":
            # The database that was there is the other source's.
            found = databases_of(self._sampler.view, source)
            database = found["database"]
            field = self._pages.text("parts/database_field.html", **found, of_tables=True, oob=True)
        values = await self._choices(source, database)
        return HTMLResponse(self._pages.text("parts/table_choice.html", **values) + field)

    async def _choices(self, source: str, database: str) -> dict[str, Any]:
        values: dict[str, Any] = {"tables": [], "publications": [], "problem": None, "more": ""}
        if source and database:
            try:
                values |= await self._offered(source, database, 0)
                values["publications"] = await self._engine.list_publications(source, database)
            except SpillwayError as error:
                values["problem"] = error
        return values

    async def _offered(self, source: str, database: str, after: int) -> dict[str, Any]:
        """Return a page of tables to tick, and where the next one is."""
        tables, following = await self._engine.list_tables(source, database, after, _TABLES_OFFERED)
        query = {"source": source, "database": database, "after": following}
        more = "" if following is None else f"/ui/subscriptions/tables/more?{urlencode(query)}"
        sizes = f"/ui/subscriptions/tables/sizes?{urlencode({**query, 'after': after})}"
        notes = {f"{table.schema}.{table.name}": _lake_notes(table) for table in tables}
        return {
            "tables": tables, "more": more, "sizes": sizes, "after": after, "lake_notes": notes,
        }  # fmt: skip

    async def _sizes(self, request: Request) -> Response:
        """Give the sizes of tables that are offered; the source is asked, and the form is there
        without it.
        """
        query = request.query_params
        source, database = query.get("source", ""), query.get("database", "")
        after = _after(query.get("after", ""))
        problem, sizes = None, {}
        tables, _ = await self._engine.list_tables(source, database, after, _TABLES_OFFERED)
        names = [f"{table.schema}.{table.name}" for table in tables]
        try:
            async with asyncio.timeout(_SIZES_S):
                sizes = dict(await self._engine.table_sizes(source, database, names))
        except (SpillwayError, TimeoutError) as error:
            problem = error.message if isinstance(error, SpillwayError) else "it does not answer"
        text = self._pages.text(
            "parts/table_sizes.html", names=names, sizes=sizes, problem=problem, after=after
        )
        return HTMLResponse(text)

    async def _more(self, request: Request) -> Response:
        """Give the tables that come behind those offered so far."""
        query = request.query_params
        after = _after(query.get("after", ""))
        values = await self._offered(query.get("source", ""), query.get("database", ""), after)
        return HTMLResponse(self._pages.text("parts/table_ticks.html", **values))

    async def _create(self, request: Request) -> Response:
        made = await self._subscriptions.create(_spec(Form(request)))
        return await self._done(request, made.name, "subscribed")

    async def _check(self, request: Request) -> Response:
        """Look whether the target can be filled; nothing is made."""
        notes = await self._subscriptions.check(_spec(Form(request)))
        return HTMLResponse(self._pages.text("parts/target_check.html", notes=notes))

    async def _as_commands(self, request: Request) -> Response:
        spec = _spec(Form(request))
        body: dict[str, Any] = {
            "name": spec.name,
            "source": spec.source,
            "database": spec.database,
            "target": dict(spec.target),
        }
        for name in ("tables", "publications"):
            if chosen := getattr(spec, name):
                body[name] = list(chosen)
        if not spec.copy_data:
            body["copy_data"] = False
        found = equivalents_of("subscription", body)
        return HTMLResponse(self._pages.text("parts/equivalents.html", equivalents=found))

    # -- doing --------------------------------------------------------------------------------

    async def _alter(self, request: Request) -> Response:
        name, form = request.path_params["name"], Form(request)
        one = await self._subscriptions.get(name)
        wanted: dict[str, object] = {
            "tables": tuple(form.lines("tables")) or None,
            "publications": tuple(form.lines("publications")) or None,
        }
        if one.target["kind"] == "lake":
            wanted["target"] = _lake(form, str(one.target["format"]), form.job_options("job"))
        elif one.target["kind"] == "postgres":
            wanted["target"] = _postgres(form)
        changes = {field: value for field, value in wanted.items() if value != getattr(one, field)}
        if changes:
            await self._subscriptions.alter(name, changes)
        return await self._done(request, name, "altered")

    async def _enable(self, request: Request) -> Response:
        one = await self._subscriptions.enable(request.path_params["name"])
        return await self._done(request, one.name, "enabled")

    async def _disable(self, request: Request) -> Response:
        one = await self._subscriptions.disable(request.path_params["name"])
        return await self._done(request, one.name, "disabled")

    async def _refresh(self, request: Request) -> Response:
        one = await self._subscriptions.refresh(request.path_params["name"])
        return await self._done(request, one.name, "refreshed")

    async def _pause_table(self, request: Request) -> Response:
        name, table = request.path_params["name"], _table_of(Form(request))
        await self._subscriptions.pause_table(name, table)
        return await self._done(request, name, "table-paused")

    async def _resume_table(self, request: Request) -> Response:
        name, table = request.path_params["name"], _table_of(Form(request))
        await self._subscriptions.resume_table(name, table)
        return await self._done(request, name, "table-resumed")

    async def _resync_table(self, request: Request) -> Response:
        name, table = request.path_params["name"], _table_of(Form(request))
        await self._subscriptions.resync_table(name, table)
        return await self._done(request, name, "table-anew")

    async def _cancel_resync(self, request: Request) -> Response:
        name, table = request.path_params["name"], _table_of(Form(request))
        await self._subscriptions.cancel_resync(name, table)
        return await self._done(request, name, "table-not-anew")

    async def _verify(self, request: Request) -> Response:
        name, table = request.path_params["name"], Form(request).text("table")
        await self._subscriptions.verify(name, (table,) if table else ())
        return await self._done(request, name, "verifying")

    async def _skip(self, request: Request) -> Response:
        name, form = request.path_params["name"], Form(request)
        lsn = form.needed_lsn("lsn")
        confirm_name(form, name)
        await self._subscriptions.skip(name, lsn)
        return await self._done(request, name, "skipped")

    async def _drop(self, request: Request) -> Response:
        name, form = request.path_params["name"], Form(request)
        confirm_name(form, name)
        left = await self._subscriptions.drop(name, keep_slot=form.flag("keep_slot"))
        await self._sampler.look()
        # What is left on the target, and how it is removed, is the newest event of its.
        return done(request, f"/ui/events?subscription={name}" if left else "/")

    async def _done(self, request: Request, name: str, note: str) -> Response:
        await self._sampler.look()
        return done(request, f"/ui/subscriptions/{name}?note={note}")


def _lake_notes(table: TableInfo) -> list[str]:
    """Say what is otherwise in a lake than in the table."""
    notes = []
    if table.kind == "partitioned table":
        notes.append("its partitions are a lake's tables, unless partition_root names it")
    odd = [column.name for column in table.columns if needs_column_mapping(column.name)]
    if odd:
        notes.append(f"Delta needs column mapping, or safe column names, for {_some(odd)}")
    texts = [f"{column.name} ({column.type})" for column in table.columns if column.as_text]
    if texts:
        notes.append(f"text in a lake: {_some(texts)}")
    return notes


def _some(names: Sequence[str]) -> str:
    more = len(names) - _COLUMNS_NAMED
    return ", ".join(names[:_COLUMNS_NAMED]) + (f" and {more} more" if more > 0 else "")


def _after(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InvalidRequest("after is no number.", hint="Open the form again.") from error


def _table_of(form: Form) -> str:
    table = form.text("table")
    if not table:
        raise InvalidRequest("No table is named.", hint="Name one of its tables: schema.table.")
    return table


def _spec(form: Form) -> SubscriptionSpec:
    """Read the form that creates one."""
    what = form.text("what") or "all"
    tables, publications = form.texts("table"), form.texts("publication")
    if what == "tables" and not tables:
        raise InvalidRequest("No table is ticked.", hint="Tick the tables to follow, or take all.")
    if what == "publications" and not publications:
        raise InvalidRequest("No publication is ticked.", hint="Tick one, or take all tables.")
    into_postgres = form.text("kind") == "postgres"
    return SubscriptionSpec(
        name=form.text("name"),
        source=form.text("source"),
        database=form.text("database"),
        target=_postgres(form) if into_postgres else _new_lake(form),
        tables=tuple(tables) if what == "tables" else None,
        publications=tuple(publications) if what == "publications" else None,
        copy_data=form.flag("copy_data"),
    )


def _postgres(form: Form) -> dict[str, Any]:
    """Read a target of kind postgres."""
    target = {"kind": "postgres", "dsn": form.text("dsn"), **form.json_options("target")}
    if form.flag("create_tables"):
        target["create_tables"] = True
    return target


def _postgres_lines(target: Mapping[str, Any]) -> str:
    """Return the options of a PostgreSQL as lines of the form: name = JSON."""
    return "\n".join(
        f"{name} = {json.dumps(value)}"
        for name, value in target.items()
        if name not in ("kind", "dsn")
    )


def _is_silent(one: SubscriptionInfo) -> bool:
    """Say whether a program that runs has not told of itself for longer than it ever takes."""
    if one.pid is None or one.told_at is None:
        return False
    return (datetime.now(UTC) - one.told_at).total_seconds() > _SILENT_S


def _shown_tables(one: SubscriptionInfo) -> dict[str, Any]:
    """Return the tables that a page shows, those that are not ready first, and how many there are
    of each state.
    """
    states = one.table_states
    order = sorted(states, key=lambda table: (table.state == "ready", table.table))
    return {
        "shown": order[:_TABLES_SHOWN],
        "more": max(0, len(order) - _TABLES_SHOWN),
        "count": len(states),
        "ready": sum(table.state == "ready" for table in states),
        "aside": sum(table.state == "quarantined" for table in states),
        "paused": sum(table.state == "paused" for table in states),
        "counts": Counter(table.sync_state for table in states if table.sync_state),
        "copying": _copying(states),
    }


def _copying(states: Sequence[TableState]) -> dict[str, Any] | None:
    """Sum up the copies that run; None: none does. What is not known of one is not of all."""
    copying = [table for table in states if table.state == "copying"]
    if not copying:
        return None
    totals = [table.bytes_total for table in copying]
    rates = [t.bytes_per_second for t in copying if t.bytes_per_second is not None]
    done = sum(table.bytes_copied or 0 for table in copying)
    total = None if None in totals else sum(size or 0 for size in totals)
    rate = sum(rates) if rates else None
    return {
        "tables": len(copying),
        "bytes": done,
        "total": total,
        "rate": rate,
        "seconds_left": max(0, total - done) / rate if total is not None and rate else None,
    }


def _example_table(one: SubscriptionInfo) -> str:
    """Return the table that commands name: the one that most needs them."""
    order = ("quarantined", "waiting", "copying", "paused", "ready")
    known = sorted(one.table_states, key=lambda t: (order.index(t.state), t.table))
    return known[0].table if known else (one.tables or ("schema.table",))[0]


def _new_lake(form: Form) -> dict[str, Any]:
    """Read the target of the form that creates one; of the layout what the format has, as the rest
    is hidden then.
    """
    format_ = form.text("format") or "delta"
    more: dict[str, Any] = {
        option.name: form.text(option.name)
        for option in form_options()
        if option.is_of(format_) and option.kind not in SEVERAL
    }
    return _lake(form, format_, more | form.job_options("job"))


def _lake(form: Form, format_: str, more: dict[str, Any]) -> dict[str, Any]:
    own = {"kind": "lake", "format": format_, "path": form.text("path")}
    # First, as they are shown, and whatever the lines of the job say.
    target: dict[str, Any] = {**own, **more, **own}
    for option in _options_with_lines(format_):
        if option.kind in ("settings", "times"):
            target[option.name] = form.settings(option.name, _lines_of(option))
        elif option.kind == "tables":
            target[option.name] = form.tables(option.name)
        else:
            target[option.name] = form.columns_by_table(option.name, _lines_of(option))
    return {name: value for name, value in target.items() if value not in ("", {}, [])}


def _options_with_lines(format_: str) -> list[LakeOption]:
    """Return what a lake of that format has a line each for: of a table, or of a setting."""
    return [option for option in form_options() if option.kind in SEVERAL and option.is_of(format_)]


def _lines_of(option: LakeOption) -> str:
    assert option.form is not None
    return option.form.lines_of


def _job_of(target: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a lake that have a line each in the form."""
    own_fields = {"kind", "format", "path"}
    own_fields |= {option.name for option in form_options() if option.kind in SEVERAL}
    return {name: value for name, value in target.items() if name not in own_fields}
