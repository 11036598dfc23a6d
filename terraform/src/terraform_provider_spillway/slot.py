"""``spillway_slot``: a logical replication slot of the service.

A slot's position is its consumer's and no attribute of the resource, or every plan would differ
from the one before; the data source shows it. ``start_lsn`` is where the slot began: another one
moves it there, forward by advance, back by rewind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tf.types import Bool, Map, String, Unknown

from terraform_provider_spillway import checks
from terraform_provider_spillway.declared import slot_column, slot_columns
from terraform_provider_spillway.resource import (
    DELETION_PROTECTION,
    Incomplete,
    ServiceData,
    ServiceResource,
    State,
)
from terraform_provider_spillway.schema import Field
from terraform_provider_spillway.service_client import ServiceError

if TYPE_CHECKING:
    from tf.iface import CreateContext, DeleteContext, PlanContext, ReadDataContext, UpdateContext
    from tf.utils import Diagnostics

_PLACES: Final = {
    "invalid_slot_name": "slot_name",
    "unknown_slot": "slot_name",
    "duplicate_name": "slot_name",
    "slot_active": "slot_name",
    "unknown_source": "source",
    "unknown_database": "database",
    "unknown_plugin": "plugin",
    "plugin_failed": "plugin",
    "invalid_option": "options",
    "unknown_publication": "options",
    "not_captured": "options",
    "invalid_lsn": "start_lsn",
    "lsn_not_retained": "start_lsn",
}


class Slot(ServiceResource):
    """The resource."""

    name = "slot"
    description = (
        "A logical replication slot, as `pg_create_logical_replication_slot` makes one, but of the "
        "service: nothing logical is on the primary. Destroying it gives up its position and what "
        "is kept for it. Temporary slots are for consumers to make."
    )
    places = _PLACES
    fields = (
        Field(
            "slot_name",
            String(),
            "Its name, by PostgreSQL's rules: 1 to 63 lower case letters, digits and underscores.",
            required=True,
            replaces=True,
            checks=[checks.slot_name],
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
            "The database that is decoded.",
            required=True,
            replaces=True,
            checks=[checks.not_empty],
        ),
        Field(
            "plugin",
            String(),
            "The output plugin: `test_decoding`, `pgoutput`, `wal2json`, `arrow`, or one that is "
            "installed in the service.",
            optional=True,
            default="test_decoding",
            replaces=True,
            checks=[checks.not_empty],
        ),
        Field(
            "options",
            Map(String()),
            "The plugin's options, as text. Others are given in place, while no consumer has the "
            "slot. A subscription's slot has the subscription's.",
            optional=True,
        ),
        Field(
            "two_phase",
            Bool(),
            "Deliver prepared transactions at PREPARE TRANSACTION.",
            optional=True,
            default=False,
            replaces=True,
        ),
        Field(
            "failover",
            Bool(),
            "Shown, and means nothing yet.",
            optional=True,
            default=False,
            replaces=True,
        ),
        Field(
            "start_lsn",
            String(),
            "Begin at this position, which must be kept still, instead of at the present. Another "
            "one later moves the slot there, in place: back, so that its consumer gets changes "
            "again, or forward, so that it never gets those between.",
            optional=True,
            checks=[checks.lsn],
        ),
        DELETION_PROTECTION,
        slot_column("datoid", stable=True),
        slot_column("wal_status", stable=False),
        slot_column("invalidation_reason", stable=False),
        slot_column("created_at", stable=True),
    )

    def plan(self, ctx: PlanContext, current: State | None, planned: State) -> State:
        if current is None:
            self._check_plugin(ctx.diagnostics, planned["plugin"])
        elif planned["start_lsn"] not in (None, current["start_lsn"]):
            where = "a position that the apply will tell"
            if planned["start_lsn"] is not Unknown:
                where = planned["start_lsn"]
            ctx.diagnostics.add_warning(
                f'Slot "{planned["slot_name"]}" will be moved to {where}',
                "Back, its consumer gets again what it had; forward, it never gets what lies "
                "between.",
                path=["start_lsn"],
            )
        return planned

    def _check_plugin(self, diags: Diagnostics, plugin: Any) -> None:
        """Ask the service, if it can be asked, whether it has the plugin; packages may add some."""
        if plugin is Unknown or self.connection.client is None:
            return
        try:
            known = [one["name"] for one in self.service.get("plugins")["plugins"]]
        except ServiceError as error:
            diags.add_warning(
                f'Whether the service has the plugin "{plugin}" can\'t be checked: {error.code}',
                f"{error.message}\n\nThe apply will show.",
                path=["plugin"],
            )
            return
        if plugin not in known:
            diags.add_error(
                f'Unknown output plugin "{plugin}": unknown_plugin',
                f'The service has no output plugin "{plugin}".\n'
                "\n"
                f"It has {', '.join(known)}. A package that registers another is installed "
                "where the service runs.\n\nError code: unknown_plugin.",
                path=["plugin"],
            )

    def create(self, ctx: CreateContext, planned: State) -> State:
        names = ("slot_name", "source", "database", "plugin", "two_phase", "failover")
        body: dict[str, Any] = {name: planned[name] for name in names}
        body["options"] = planned["options"] or {}
        if planned["start_lsn"] is not None:
            body["start_lsn"] = planned["start_lsn"]
        return self._state(planned, self.service.post("slots", json=body))

    def update(self, ctx: UpdateContext, current: State, planned: State) -> State:
        view = self.service.get("slots", planned["slot_name"])
        options = next(field for field in self.fields if field.name == "options")
        if not options.same(planned["options"], current["options"]):
            view = self.service.patch(
                "slots", planned["slot_name"], json={"options": planned["options"] or {}}
            )
            current = {**current, "options": planned["options"]}
        try:
            return self._state(planned, self._moved(view, current, planned))
        except ServiceError as error:
            # The options are given, the rest is as it was.
            raise Incomplete(current, error) from error

    def _moved(self, view: dict[str, Any], current: State, planned: State) -> dict[str, Any]:
        """Move it to its start_lsn, if that is another one than before."""
        to = planned["start_lsn"]
        if to not in (None, current["start_lsn"]):
            at = view["confirmed_flush_lsn"]
            if at is None or _position(to) < _position(at):
                view = self.service.post("slots", planned["slot_name"], "rewind", json={"lsn": to})
            elif _position(to) > _position(at):
                self.service.post("slots", planned["slot_name"], "advance", json={"upto_lsn": to})
                view = self.service.get("slots", planned["slot_name"])
        return view

    def delete(self, ctx: DeleteContext, current: State) -> None:
        self.remove("slots", current["slot_name"], unknown="unknown_slot")

    def fetch(self, diags: Diagnostics, current: State) -> State:
        view = self.service.get("slots", current["slot_name"])
        if view["invalidation_reason"]:
            diags.add_warning(
                f'Slot "{view["slot_name"]}" was invalidated: {view["invalidation_reason"]}',
                "It can't be read any more. Replace it (-replace) and load its consumer anew.",
            )
        return self._state(current, view)

    def _state(self, known: State, view: dict[str, Any]) -> State:
        state = {field.name: view.get(field.name) for field in self.fields}
        for own in ("start_lsn", "deletion_protection"):
            state[own] = known[own]
        options = next(field for field in self.fields if field.name == "options")
        if options.same(known["options"], view["options"]):
            # As the configuration has it: null, or an empty map.
            state["options"] = known["options"]
        return state


def _position(lsn: str) -> int:
    high, low = lsn.split("/")
    return int(high, 16) << 32 | int(low, 16)


class SlotData(ServiceData):
    """The data source."""

    name = "slot"
    description = (
        "A slot as it is now: every column of PostgreSQL 18's `pg_replication_slots`, and "
        "Spillway's own."
    )
    places = _PLACES
    fields = (
        Field("slot_name", String(), "Its name.", required=True, checks=[checks.slot_name]),
        *(column for name, column in slot_columns().items() if name != "slot_name"),
    )

    def read(self, ctx: ReadDataContext, config: State) -> State:
        view = self.service.get("slots", config["slot_name"])
        return {field.name: view.get(field.name) for field in self.fields}
