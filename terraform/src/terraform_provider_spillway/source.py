"""``spillway_source``: a PostgreSQL cluster that WAL comes from.

The service never tells a DSN with its password. So the state keeps what was applied, and
``connection``, what the service shows of it. When that changes without Terraform, the DSN in the
state is not the source's any more and is forgotten: the next plan shows it. An import begins like
that, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tf.types import Number, Set, String

from terraform_provider_spillway import checks
from terraform_provider_spillway.resource import (
    DELETION_PROTECTION,
    Incomplete,
    ServiceData,
    ServiceResource,
    State,
    wait_timeout,
    wait_until,
)
from terraform_provider_spillway.schema import Field, NestedField, as_number
from terraform_provider_spillway.service_client import ServiceError

if TYPE_CHECKING:
    from tf.iface import CreateContext, DeleteContext, ReadDataContext, UpdateContext
    from tf.utils import Diagnostics


def _normal_capture(capture: dict[str, Any] | None) -> tuple[str, list[str], list[str]]:
    """Make equal what captures the same: null is everything."""
    capture = capture or {}
    return (
        capture.get("origin") or "any",
        sorted(capture.get("tables") or ()),
        sorted(capture.get("publications") or ()),
    )


def _one_selection(capture: dict[str, Any]) -> str | None:
    if capture.get("tables") and capture.get("publications"):
        return "Name tables, or publications that publish them, not both."
    return None


_NAME: Final = Field(
    "name",
    String(),
    "Its name: 1 to 50 lower case letters, digits and underscores. The physical slot on the "
    "primary is named after it.",
    required=True,
    replaces=True,
    checks=[checks.source_name],
)
_FACTS: Final = (
    Field(
        "connection",
        String(),
        "The DSN as the service shows it: passwords and other secrets masked.",
        computed=True,
    ),
    Field("system_id", String(), "PostgreSQL's system identifier.", computed=True, stable=True),
    Field(
        "server_version_num",
        Number(),
        "PostgreSQL's version as a number: 180001 for 18.1.",
        computed=True,
        stable=True,
    ),
    Field(
        "slot_name",
        String(),
        "The physical slot on the primary.",
        computed=True,
        stable=True,
    ),
    Field("timeline", Number(), "The timeline that is received.", computed=True),
    Field(
        "state",
        String(),
        "What receiving is at: `connecting`, `streaming`, `waiting`, `failed` or `stopped`.",
        computed=True,
    ),
    Field(
        "created_at", String(), "When it was made, as RFC 3339 has it.", computed=True, stable=True
    ),
)
_PLACES: Final = {
    "invalid_dsn": "dsn",
    "invalid_capture": "capture",
    "unknown_source": "name",
    "duplicate_name": "name",
    "physical_slot_active": "name",
    "source_unreachable": "dsn",
    "source_connections_exhausted": "dsn",
    "source_tls_failed": "dsn",
    "source_auth_failed": "dsn",
    "source_not_permitted": "dsn",
    "unknown_database": "dsn",
    "unsupported_version": "dsn",
    "unsupported_build": "dsn",
    "wal_level_not_logical": "dsn",
    "missing_replication_privilege": "dsn",
    "replication_not_allowed_by_hba": "dsn",
    "source_in_recovery": "dsn",
    "system_id_mismatch": "dsn",
}


def _facts(view: dict[str, Any]) -> State:
    facts = {field.name: view.get(field.name) for field in _FACTS}
    facts["connection"] = view["dsn"]
    facts["system_id"] = str(view["system_id"])
    return facts


class Source(ServiceResource):
    """The resource."""

    name = "source"
    description = (
        "A PostgreSQL cluster whose WAL the service receives and decodes; one source serves every "
        "database of the cluster. Making it checks the cluster and makes one physical replication "
        "slot there; [what the cluster needs](../../../docs/how-to/prepare-a-source.md)."
    )
    places = _PLACES
    fields = (
        _NAME,
        Field(
            "dsn",
            String(),
            "A libpq connection string or URI of a role with REPLICATION. A change is made in "
            "place when it leads to the same cluster (another password, another host after a "
            "failover); the service refuses any other.",
            required=True,
            sensitive=True,
            checks=[checks.not_empty],
        ),
        NestedField(
            "capture",
            (
                Field(
                    "origin",
                    String(),
                    "`none`: not what came in through a replication origin. `any` without it.",
                    optional=True,
                    values=("any", "none"),
                ),
                Field(
                    "tables",
                    Set(String()),
                    "Only these: `schema.table` or `schema.*`.",
                    optional=True,
                    checks=[checks.table_names],
                ),
                Field(
                    "publications",
                    Set(String()),
                    "Only tables that one of these publishes, as of each change.",
                    optional=True,
                ),
            ),
            "What is decoded at all, for every slot there will ever be; everything without it. The "
            "service can't change it later.",
            optional=True,
            replaces=True,
            checks=[_one_selection],
            normal=_normal_capture,
        ),
        Field(
            "wait_for",
            String(),
            "What creating it waits for: `streaming`, until WAL is received, or `nothing`.",
            optional=True,
            default="streaming",
            values=("streaming", "nothing"),
        ),
        wait_timeout("WAL is received"),
        DELETION_PROTECTION,
        *_FACTS,
    )

    def create(self, ctx: CreateContext, planned: State) -> State:
        body: dict[str, Any] = {"name": planned["name"], "dsn": planned["dsn"]}
        if planned["capture"] is not None:
            body["capture"] = {
                key: value for key, value in planned["capture"].items() if value is not None
            }
        view = self.service.post("sources", json=body)
        state = self._state(planned, view)
        if planned["wait_for"] == "streaming":
            try:
                state = self._wait_until_streaming(state)
            except ServiceError as error:
                raise Incomplete(state, error) from error
        return state

    def update(self, ctx: UpdateContext, current: State, planned: State) -> State:
        # Of what may change in place only the DSN is the service's; the rest is the provider's own.
        if planned["dsn"] != current["dsn"]:
            view = self.service.patch("sources", planned["name"], json={"dsn": planned["dsn"]})
        else:
            view = self.service.get("sources", planned["name"])
        state = self._state(planned, view)
        if planned["dsn"] != current["dsn"] and planned["wait_for"] == "streaming":
            state = self._wait_until_streaming(state)
        return state

    def delete(self, ctx: DeleteContext, current: State) -> None:
        self.remove("sources", current["name"], unknown="unknown_source")

    def fetch(self, diags: Diagnostics, current: State) -> State:
        view = self.service.get("sources", current["name"])
        state = self._state(current, view)
        if current["connection"] != view["dsn"]:
            state["dsn"] = None
        if view["error"]:
            diags.add_warning(
                f'Source "{view["name"]}" is {view["state"]}: {view["error_code"]}',
                f"{view['error']}\n\n{view['hint'] or ''}",
            )
        return state

    def _state(self, known: State, view: dict[str, Any]) -> State:
        state = {**known, **_facts(view)}
        ours, theirs = known["capture"], view["capture"]
        if _normal_capture(ours) != _normal_capture(theirs):
            # Written as a configuration would be.
            ours = {key: value or None for key, value in theirs.items()}
        state["capture"] = ours
        return state

    def _wait_until_streaming(self, state: State) -> State:
        seen: dict[str, Any] = {}

        def look() -> str | None:
            seen.update(self.service.get("sources", state["name"]))
            if seen["state"] == "failed":
                raise ServiceError(
                    str(seen["error"]),
                    code=str(seen["error_code"]),
                    hint=str(seen["hint"] or ""),
                )
            if seen["state"] == "streaming":
                return None
            return f"it is {seen['state']}" + (f": {seen['error']}" if seen["error"] else "")

        wait_until(self.service, as_number(state["wait_timeout"]), "receiving WAL", look)
        return self._state(state, seen)


class SourceData(ServiceData):
    """The data source."""

    name = "source"
    description = "A source as it is now: what is received and decoded, and what is wrong."
    places = _PLACES
    fields = (
        Field("name", String(), "Its name.", required=True, checks=[checks.source_name]),
        *_FACTS,
        NestedField(
            "capture",
            (
                Field("origin", String(), "`any` or `none`.", computed=True),
                Field("tables", Set(String()), "Only these; all if empty.", computed=True),
                Field(
                    "publications",
                    Set(String()),
                    "Only what one of these publishes.",
                    computed=True,
                ),
            ),
            "What is decoded at all.",
            computed=True,
        ),
        Field("received_lsn", String(), "How far WAL is received.", computed=True),
        Field("flushed_lsn", String(), "How far it is on the service's disk.", computed=True),
        Field("error", String(), "What is wrong.", computed=True),
        Field("error_code", String(), "Its code.", computed=True),
        Field("hint", String(), "What to do about it.", computed=True),
        NestedField(
            "sessions",
            (
                Field("database", String(), "The database.", computed=True),
                Field("datoid", Number(), "Its OID.", computed=True),
                Field(
                    "snapshot_state",
                    String(),
                    "`start`, `building_snapshot`, `full_snapshot`, `consistent` or `failed`.",
                    computed=True,
                ),
                Field("decoded_lsn", String(), "How far it is decoded.", computed=True),
                Field("restart_lsn", String(), "Where decoding would begin again.", computed=True),
                Field("error", String(), "What is wrong.", computed=True),
                Field("error_code", String(), "Its code.", computed=True),
            ),
            "The databases that are decoded.",
            nesting="list",
            computed=True,
        ),
    )

    def read(self, ctx: ReadDataContext, config: State) -> State:
        view = self.service.get("sources", config["name"])
        return {field.name: view.get(field.name) for field in self.fields} | _facts(view)
