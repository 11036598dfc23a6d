"""``spillway_subscription``: what fills a target from a slot, declared once and kept running by the
service.

A subscription makes its slot unless it is there. Where the configuration names the slot, it is
somebody else's, a ``spillway_slot`` for one, and stays when the subscription goes, unless
``keep_slot`` says otherwise.

A target's kinds are the service's to know, and packages may add some: what is here has a name and
a type of its own, another kind's fields go into ``options``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tf.types import Bool, List, Map, Number, Set, String, Unknown

from terraform_provider_spillway import checks
from terraform_provider_spillway.declared import json_options, target_options
from terraform_provider_spillway.resource import (
    DELETION_PROTECTION,
    Incomplete,
    ServiceData,
    ServiceResource,
    State,
    wait_timeout,
    wait_until,
)
from terraform_provider_spillway.schema import Field, NestedField, as_number, as_value
from terraform_provider_spillway.service_client import ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tf.iface import CreateContext, DeleteContext, ReadDataContext, UpdateContext
    from tf.utils import Diagnostics

#: A program that failed so often since the apply began is not about to come up. A busy machine may
#: fail Spark's start more than once.
_FAILURES_MAX: Final = 5

#: Kinds of which is known what the service fills in.
_OWN_KINDS: Final = frozenset({"lake", "postgres"})

_PLACES: Final = {
    "unknown_subscription": "name",
    "duplicate_name": "name",
    "unknown_source": "source",
    "unknown_database": "database",
    "unknown_table": "tables",
    "not_captured": "tables",
    "unknown_publication": "publications",
    "unknown_slot": "slot",
    "slot_active": "slot",
    "invalid_slot_name": "slot",
    "invalid_option": "options",
}

_TARGET: Final = (
    Field(
        "kind",
        String(),
        "`lake`: tables of a lake, filled by `spillway lake run`. `postgres`: tables of another "
        "PostgreSQL, filled by `spillway apply run`. Packages in the service may have others.",
        required=True,
        checks=[checks.not_empty],
    ),
    Field(
        "format",
        String(),
        "Of a lake: `delta`, `iceberg` or `parquet`; `delta` without it.",
        optional=True,
        values=("delta", "iceberg", "parquet"),
    ),
    Field(
        "path",
        String(),
        "Of a lake: an absolute directory of the service's machine, or `s3://bucket/prefix`.",
        optional=True,
        checks=[checks.not_empty],
    ),
    *target_options(),
    Field(
        "dsn",
        String(),
        "Of `postgres`: a libpq connection string or URI of the database that is filled. A change "
        "is made in place: the same database by another way.",
        optional=True,
        sensitive=True,
        checks=[checks.not_empty],
    ),
    Field(
        "options",
        Map(String()),
        "Fields of a kind that a package in the service registers, as text.",
        optional=True,
    ),
)
_NUMBERS: Final = frozenset(field.name for field in _TARGET if isinstance(field.type, Number))
_JSON: Final = json_options()


def _as_sent(target: Mapping[str, Any]) -> dict[str, Any]:
    """Make the service's form of a target."""
    sent = {name: value for name, value in target.items() if value is not None}
    for name in _NUMBERS & sent.keys():
        sent[name] = as_number(sent[name])
    for name in _JSON & sent.keys():
        # What the service tells is no text.
        if isinstance(sent[name], str):
            sent[name] = json.loads(sent[name])
    return {**sent.pop("options", {}), **sent}


def _as_told(target: Mapping[str, Any]) -> State:
    """Make of the service's form what a configuration would have."""
    known = {field.name for field in _TARGET} - {"options"}
    told: State = {name: target.get(name) for name in known}
    for name in _NUMBERS:
        if told[name] is not None:
            told[name] = as_value(told[name])
    for name in _JSON:
        if told[name] is not None:
            told[name] = json.dumps(told[name], sort_keys=True, ensure_ascii=False)
    told["options"] = {k: str(v) for k, v in target.items() if k not in known} or None
    return told


def _normal_target(target: Mapping[str, Any] | None) -> dict[str, Any]:
    sent = _as_sent(target or {})
    if sent.get("kind") == "lake":
        sent.setdefault("format", "delta")
    return sent


def _has_all_of(told: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Say whether the service tells of the target that was asked for; kinds of packages may fill in
    what they like.
    """
    theirs, given = _normal_target(told), _normal_target(ours)
    if given["kind"] in _OWN_KINDS:
        return theirs == given
    return given.items() <= theirs.items()


def _another_place(before: Mapping[str, Any] | None, after: Any) -> bool:
    """Say whether it writes to another place, and not only otherwise."""
    if after is Unknown or not before or not after:
        return True
    for name in ("kind", "format", "path", "rename", "options"):
        one, other = before[name], after[name]
        if name == "format":
            one, other = one or "delta", other or "delta"
        if one != other and (one or other):
            return True
    return False


def _has_a_place(target: Mapping[str, Any]) -> str | None:
    if target.get("kind") == "lake" and target.get("path") is None:
        return "A lake needs a path."
    if target.get("kind") == "postgres" and target.get("dsn") is None:
        return "A PostgreSQL needs a dsn."
    return None


class Subscription(ServiceResource):
    """The resource."""

    name = "subscription"
    description = (
        "What fills a target, a lake for one, with a database's tables and their changes; the "
        "service runs and restarts its program. Destroying it leaves what is in the target."
    )
    places = _PLACES
    fields = (
        Field(
            "name",
            String(),
            "Its name: 1 to 63 lower case letters, digits and underscores.",
            required=True,
            replaces=True,
            checks=[checks.subscription_name],
        ),
        Field(
            "source",
            String(),
            "The source's name.",
            required=True,
            replaces=True,
            checks=[checks.source_name],
        ),
        Field(
            "database",
            String(),
            "The database whose tables they are.",
            required=True,
            replaces=True,
            checks=[checks.not_empty],
        ),
        NestedField(
            "target",
            _TARGET,
            "What is filled. How its program runs changes in place; another kind, format, path or "
            "`rename` is another subscription.",
            required=True,
            replaces=_another_place,
            normal=_normal_target,
            checks=[_has_a_place],
        ),
        Field(
            "slot",
            String(),
            "Its slot: one of a `spillway_slot`, or one that it makes; of its own name without it.",
            optional=True,
            computed=True,
            replaces=True,
            checks=[checks.slot_name],
        ),
        Field(
            "keep_slot",
            Bool(),
            "Whether the slot stays when it is destroyed: true where `slot` is given, false "
            "otherwise.",
            optional=True,
            computed=True,
        ),
        Field(
            "tables",
            Set(String()),
            "`schema.table`, as the catalog has it; a partitioned one stands for its partitions. "
            "All without tables and publications.",
            optional=True,
            checks=[checks.published_names],
        ),
        Field(
            "publications",
            Set(String()),
            "What these publish. Not together with tables.",
            optional=True,
        ),
        Field(
            "enabled",
            Bool(),
            "Whether it runs; otherwise its slot keeps what comes.",
            optional=True,
            default=True,
        ),
        Field(
            "copy_data",
            Bool(),
            "Copy what is in the tables already, before their changes.",
            optional=True,
            default=True,
            replaces=True,
        ),
        Field(
            "origin",
            String(),
            "`none`: only changes without a replication origin.",
            optional=True,
            default="any",
            values=("any", "none"),
            replaces=True,
        ),
        Field(
            "streaming",
            String(),
            "Take transactions in progress: `off`, `on` or `parallel`.",
            optional=True,
            default="off",
            values=("off", "on", "parallel"),
            replaces=True,
        ),
        Field(
            "two_phase",
            Bool(),
            "Take prepared transactions at PREPARE TRANSACTION.",
            optional=True,
            default=False,
            replaces=True,
        ),
        Field(
            "options",
            Map(String()),
            "Options of the slot's output plugin, as text; without them as the slot has them.",
            optional=True,
        ),
        Field(
            "wait_for",
            String(),
            "What an apply waits for while it is enabled: `streaming`, until its tables are copied "
            "and it follows the slot; `copying`, until it follows the slot; `nothing`.",
            optional=True,
            default="streaming",
            values=("streaming", "copying", "nothing"),
        ),
        wait_timeout("it is where `wait_for` says", default=600),
        DELETION_PROTECTION,
        Field(
            "state",
            String(),
            "`initializing`, `copying`, `streaming`, `paused` or `failed`.",
            computed=True,
        ),
        Field(
            "connection",
            String(),
            "Of `postgres`: the target's connection string as the service shows it, without its "
            "password.",
            computed=True,
        ),
        Field(
            "created_at",
            String(),
            "When it was made, as RFC 3339 has it.",
            computed=True,
            stable=True,
        ),
    )

    def validate(self, diags: Diagnostics, type_name: str, config: Mapping[str, Any]) -> None:
        super().validate(diags, type_name, config)
        if config.get("tables") and config.get("publications"):
            diags.add_error(
                "Invalid publications",
                "Name tables, or publications that publish them, not both.",
                path=["publications"],
            )

    def filled_in(self, config: Mapping[str, Any], planned: State) -> State:
        if config["slot"] is None:
            planned["slot"] = planned["name"]
        if config["keep_slot"] is None:
            planned["keep_slot"] = config["slot"] is not None
        return planned

    def create(self, ctx: CreateContext, planned: State) -> State:
        names = (
            "name", "source", "database", "slot", "tables", "publications", "enabled", "copy_data",
            "origin", "streaming", "two_phase",
        )  # fmt: skip
        body: dict[str, Any] = {name: planned[name] for name in names}
        body["target"] = _as_sent(planned["target"])
        body["options"] = planned["options"] or {}
        view = self.service.post("subscriptions", json=body)
        if notes := view.get("notes"):
            ctx.diagnostics.add_warning(
                f'Subscription "{view["name"]}" is made; of its target it is good to know',
                "\n\n".join(notes),
            )
        state = self._state(planned, view)
        try:
            return self._wait(state, view["restarts"])
        except ServiceError as error:
            raise Incomplete(state, error) from error

    def update(self, ctx: UpdateContext, current: State, planned: State) -> State:
        changes: dict[str, Any] = {}
        for field in self.fields:
            if field.name in ("tables", "publications", "enabled", "options", "target"):
                value = planned[field.name]
                if not field.same(value, current[field.name]):
                    changes[field.name] = value
        if "target" in changes:
            changes["target"] = _as_sent(changes["target"])
        if "options" in changes:
            changes["options"] = changes["options"] or {}
        if not changes:
            view = self.service.get("subscriptions", planned["name"])
            return self._state(planned, view)
        view = self.service.patch("subscriptions", planned["name"], json=changes)
        state = self._state(planned, view)
        try:
            return self._wait(state, view["restarts"])
        except ServiceError as error:
            raise Incomplete(state, error) from error

    def delete(self, ctx: DeleteContext, current: State) -> None:
        keep = "true" if current["keep_slot"] else "false"
        dropped = self.remove(
            "subscriptions", current["name"], unknown="unknown_subscription", keep_slot=keep
        )
        # A service of an earlier release answers nothing.
        if dropped and dropped["notes"]:
            ctx.diagnostics.add_warning(
                f'Subscription "{current["name"]}" is dropped, and not all of it is gone',
                "\n\n".join(dropped["notes"]),
            )

    def fetch(self, diags: Diagnostics, current: State) -> State:
        view = self.service.get("subscriptions", current["name"])
        state = self._state(current, view)
        if state["keep_slot"] is None:
            # Imported, or of a release that didn't know.
            state["keep_slot"] = view["slot"] != view["name"]
        if view["error"]:
            diags.add_warning(
                f'Subscription "{view["name"]}" is {view["state"]}: {view["error"]["code"]}',
                f"{view['error']['message']}\n\n{view['error']['hint']}",
            )
        return state

    def _state(self, known: State, view: Mapping[str, Any]) -> State:
        state: State = {}
        told = _as_told(view["target"])
        connection = told["dsn"]
        if told["kind"] == "postgres" and known["target"]:
            # The service masks the password, so the DSN is the configuration's, unless what can be
            # seen of it has changed since.
            moved = known.get("connection") not in (Unknown, None, connection)
            told["dsn"] = None if moved else known["target"]["dsn"]
        elif told["kind"] == "postgres":
            told["dsn"] = None
        for field in self.fields:
            name = field.name
            if name == "connection":
                state[name] = connection
                continue
            if name in ("keep_slot", "wait_for", "wait_timeout", "deletion_protection"):
                state[name] = known[name]
                continue
            ours, theirs = known[name], view[name]
            same = ours is not Unknown and field.same(ours, theirs)
            if name == "target":
                theirs = told
                same = _has_all_of(theirs, ours) if ours else False
            # As the configuration writes it, where that means the same.
            state[name] = ours if same else theirs
        if known["options"] is None:
            # Not given: as the slot has them.
            state["options"] = None
        return state

    def _wait(self, state: State, restarts: int) -> State:
        """Wait until it is where ``wait_for`` says; *restarts* is how often its program had failed
        before.
        """
        wait_for, enough = state["wait_for"], {"streaming"}
        if wait_for == "copying":
            enough.add("copying")
        if wait_for == "nothing" or not state["enabled"]:
            return state
        seen: dict[str, Any] = {}

        def look() -> str | None:
            seen.update(self.service.get("subscriptions", state["name"]))
            if seen["state"] in enough:
                return None
            error = seen["error"]
            failures = seen["restarts"] - restarts
            if seen["state"] == "failed" and error and failures >= _FAILURES_MAX:
                raise ServiceError(error["message"], code=error["code"], hint=error["hint"])
            return f"it is {seen['state']}" + (f": {error['message']}" if error else "")

        what = f'subscription "{state["name"]}"'
        wait_until(self.service, as_number(state["wait_timeout"]), what, look)
        return self._state(state, seen)


class SubscriptionData(ServiceData):
    """The data source."""

    name = "subscription"
    description = "A subscription as it is now: state, position, lag, and each of its tables."
    places = _PLACES
    fields = (
        Field("name", String(), "Its name.", required=True, checks=[checks.subscription_name]),
        *(
            Field(name, type_, description, computed=True)
            for name, type_, description in (
                ("source", String(), "The source's name."),
                ("database", String(), "The database whose tables they are."),
                ("slot", String(), "Its slot."),
                ("enabled", Bool(), "Whether it runs."),
                (
                    "state",
                    String(),
                    "`initializing`, `copying`, `streaming`, `paused` or `failed`.",
                ),
                ("confirmed_flush_lsn", String(), "Up to where all is in the target."),
                ("lag_bytes", Number(), "WAL that is decoded and not confirmed."),
                (
                    "lag_seconds",
                    Number(),
                    "Age of the oldest transaction that is not confirmed.",
                ),
                ("rows", Number(), "Changes that are durable in the target."),
                ("restarts", Number(), "How often its program failed and was started again."),
                ("created_at", String(), "When it was made."),
            )
        ),
        NestedField(
            "error",
            (
                Field("code", String(), "Stable.", computed=True),
                Field("message", String(), "What happened.", computed=True),
                Field("hint", String(), "What to do about it.", computed=True),
            ),
            "Why its program failed last.",
            computed=True,
        ),
        NestedField(
            "table_states",
            (
                Field("table", String(), "`schema.table`", computed=True),
                Field(
                    "state",
                    String(),
                    "`waiting`, `copying`, `ready`, `quarantined`, `paused`.",
                    computed=True,
                ),
                Field("changes", Number(), "Durable in the target.", computed=True),
                Field("reason", String(), "Why it is in quarantine.", computed=True),
                Field(
                    "resync_state",
                    String(),
                    "Of the last wish to load it anew: `waiting`, `loading`, `done`, `failed`, "
                    "`cancelled`; null: there was none.",
                    computed=True,
                ),
                Field(
                    "resync_reason",
                    String(),
                    "Why that failed, and what mends it.",
                    computed=True,
                ),
            ),
            "Its tables, as its program tells.",
            nesting="list",
            computed=True,
        ),
        NestedField(
            "verification",
            (
                Field(
                    "state",
                    String(),
                    "`running`, `equal`, `different` or `failed`.",
                    computed=True,
                ),
                Field("began_at", String(), "When it began.", computed=True),
                Field("ended_at", String(), "When it ended; null while it runs.", computed=True),
                Field("lsn", String(), "As of where both sides were compared.", computed=True),
                Field("differing", List(String()), "Tables that differ.", computed=True),
                Field("reason", String(), "Why it failed.", computed=True),
            ),
            "The last comparison of a lake with its source; null: there was none.",
            computed=True,
        ),
    )

    def read(self, ctx: ReadDataContext, config: State) -> State:
        view = self.service.get("subscriptions", config["name"])
        state: State = {field.name: view.get(field.name) for field in self.fields}
        names = ("table", "state", "changes", "reason")
        tables = []
        for one in view["table_states"]:
            resync = one.get("resync") or {}
            told = {"resync_state": resync.get("state"), "resync_reason": resync.get("reason")}
            tables.append({**{name: one[name] for name in names}, **told})
        state["table_states"] = tables
        if found := view.get("verification"):
            plain = {name: found[name] for name in ("state", "began_at", "ended_at", "lsn")}
            differing = [table["table"] for table in found["tables"] if not table["equal"]]
            reason = found["error"] and found["error"]["message"]
            state["verification"] = {**plain, "differing": differing, "reason": reason}
        return state
