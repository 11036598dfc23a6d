"""Plugin protocol 6: ``tf``'s servicer, with the calls whose meaning it leaves open done here.

``tf`` 1.2 plans nothing for a creation, refuses plans of destruction, puts no object in an error's
way, and knows no state without an attribute that came later. So planning, applying and upgrading
are ours; schemas, decoding, reading and importing are its.

What a plan says of an attribute:

========================= ==========================================================================
in the configuration      that
not, with a default       the default: removing a line brings it back
not, computed             unknown for a new object; else as it is, and unknown if something else
                          changes and the attribute is not ``stable``
write-only                nothing: an apply has the configuration's value beside the plan
========================= ==========================================================================

Errors never end a call: an exception would reach users as "transport is closing". Each becomes a
diagnostic, and what is known of the object stays in the state.
"""

from __future__ import annotations

import functools
import json
import logging
from typing import TYPE_CHECKING, Any, cast

from google.protobuf.unknown_fields import UnknownFieldSet
from tf.gen import tfplugin_pb2 as pb
from tf.iface import (
    CreateContext,
    DeleteContext,
    PlanContext,
    UpdateContext,
    UpgradeContext,
)
from tf.provider import ProviderServicer
from tf.types import Unknown
from tf.utils import Diagnostics, _to_attribute_path, read_dynamic_value, to_dynamic_value

from terraform_provider_spillway.resource import Incomplete, ServiceResource, State
from terraform_provider_spillway.service_client import ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from terraform_provider_spillway.provider import SpillwayProvider
    from terraform_provider_spillway.schema import Field

log = logging.getLogger(__name__)

#: MessagePack's nil: an object that is not there.
_NOTHING = pb.DynamicValue(msgpack=b"\xc0")
#: The field's number in a request that validates, and what says yes in it: field 2.
_CLIENT_CAPABILITIES = 3
_WRITE_ONLY_ALLOWED = b"\x10\x01"


def _answered(response: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turn what a call raises into its answer's diagnostics."""

    def decorate(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapper(self: Servicer, request: Any, context: Any) -> Any:
            try:
                return call(self, request, context)
            except Exception as error:
                diags = Diagnostics()
                self.report(diags, request, "It can't be done", error)
                return response(diagnostics=diags.to_pb())

        return wrapper

    return decorate


class Servicer(ProviderServicer):
    """The provider's side of the protocol."""

    app: SpillwayProvider

    # -- the provider itself ------------------------------------------------------------------

    @_answered(pb.GetProviderSchema.Response)
    def GetProviderSchema(self, request: Any, context: Any) -> Any:
        response = super().GetProviderSchema(request, context)
        # Core reads them here; with plan_destroy, deletion_protection is told when planning.
        response.server_capabilities.plan_destroy = True
        response.server_capabilities.get_provider_schema_optional = True
        return response

    @_answered(pb.ValidateProviderConfig.Response)
    def ValidateProviderConfig(self, request: Any, context: Any) -> Any:
        return super().ValidateProviderConfig(request, context)

    @_answered(pb.ConfigureProvider.Response)
    def ConfigureProvider(self, request: Any, context: Any) -> Any:
        return super().ConfigureProvider(request, context)

    def StopProvider(self, request: Any, context: Any) -> Any:
        """End waits. Calls in progress go on, so that their states are written."""
        self.app.stopping.set()
        return pb.StopProvider.Response()

    # -- what needs no plan -------------------------------------------------------------------

    @_answered(pb.ValidateResourceConfig.Response)
    def ValidateResourceConfig(self, request: Any, context: Any) -> Any:
        _, fields = self._resource(request.type_name)
        config = read_dynamic_value(request.config)
        given = [n for n, f in fields.items() if f.write_only and config.get(n) is not None]
        if given and not _knows_write_only(request):
            diags = Diagnostics()
            diags.add_error(
                f"{given[0]} needs Terraform 1.11",
                "This release doesn't know of write-only arguments, and would keep the secret in "
                "its state. Use Terraform 1.11 or later.",
                path=[given[0]],
            )
            return pb.ValidateResourceConfig.Response(diagnostics=diags.to_pb())
        return super().ValidateResourceConfig(request, context)

    @_answered(pb.ValidateDataResourceConfig.Response)
    def ValidateDataResourceConfig(self, request: Any, context: Any) -> Any:
        return super().ValidateDataResourceConfig(request, context)

    @_answered(pb.ReadResource.Response)
    def ReadResource(self, request: Any, context: Any) -> Any:
        response = super().ReadResource(request, context)
        if not response.new_state.msgpack:
            response.new_state.CopyFrom(_NOTHING)
        return response

    @_answered(pb.ReadDataSource.Response)
    def ReadDataSource(self, request: Any, context: Any) -> Any:
        return super().ReadDataSource(request, context)

    @_answered(pb.ImportResourceState.Response)
    def ImportResourceState(self, request: Any, context: Any) -> Any:
        return super().ImportResourceState(request, context)

    @_answered(pb.UpgradeResourceState.Response)
    def UpgradeResourceState(self, request: Any, context: Any) -> Any:
        """Bring a stored state to the present schema; what the schema has no more goes, what came
        is null.
        """
        diags = Diagnostics()
        resource, fields = self._resource(request.type_name)
        if request.version > resource.version:
            diags.add_error(
                "The state is of a newer provider",
                f"Its schema has version {request.version}, this provider's {resource.version}. "
                "Install the provider that wrote it, or a newer one.",
            )
            return pb.UpgradeResourceState.Response(diagnostics=diags.to_pb())
        state = json.loads(request.raw_state.json)
        if request.version < resource.version:
            state = resource.upgrade(
                UpgradeContext(diags, request.type_name), request.version, state
            )
        known = {name: state.get(name) for name in fields}
        return pb.UpgradeResourceState.Response(
            upgraded_state=to_dynamic_value(known), diagnostics=diags.to_pb()
        )

    # -- plan and apply -----------------------------------------------------------------------

    @_answered(pb.PlanResourceChange.Response)
    def PlanResourceChange(self, request: Any, context: Any) -> Any:
        diags = Diagnostics()
        resource, fields = self._resource(request.type_name)
        prior = read_dynamic_value(request.prior_state)
        proposed = read_dynamic_value(request.proposed_new_state)
        if proposed is None:
            resource.plan_delete(diags, prior)
            return pb.PlanResourceChange.Response(planned_state=_NOTHING, diagnostics=diags.to_pb())
        config = read_dynamic_value(request.config)
        planned, changed = _planned(fields, config, proposed, prior)
        replacing = [
            name for name in changed if prior and fields[name].replaced(prior[name], planned[name])
        ]
        if replacing:
            resource.plan_delete(diags, prior)
        # Core asks again without the prior object for what comes after a replacement: that is
        # planned then.
        elif not prior or changed:
            planned = resource.plan(
                PlanContext(diags, request.type_name, changed_fields=changed),
                prior,
                resource.filled_in(config, planned),
            )
        return pb.PlanResourceChange.Response(
            planned_state=to_dynamic_value(planned),
            requires_replace=[_to_attribute_path([name]) for name in sorted(replacing)],
            diagnostics=diags.to_pb(),
        )

    @_answered(pb.ApplyResourceChange.Response)
    def ApplyResourceChange(self, request: Any, context: Any) -> Any:
        diags = Diagnostics()
        resource, fields = self._resource(request.type_name)
        prior = read_dynamic_value(request.prior_state)
        planned = read_dynamic_value(request.planned_state)
        if planned is not None:
            config = read_dynamic_value(request.config)
            resource.write_only = {
                name: config.get(name) for name, field in fields.items() if field.write_only
            }
        verb = "create" if prior is None else "update" if planned is not None else "destroy"
        what = f"Can't {verb} {resource.label(planned or prior)}"
        # What is in the state should the call fail.
        state = prior
        try:
            if prior is None:
                state = resource.create(CreateContext(diags, request.type_name), planned)
            elif planned is None:
                resource.plan_delete(diags, prior)
                if not diags.has_errors():
                    resource.delete(DeleteContext(diags, request.type_name), prior)
                    state = None
            else:
                state = resource.update(UpdateContext(diags, request.type_name), prior, planned)
        except Incomplete as incomplete:
            state = incomplete.state
            if prior is None:
                # Core marks it so; a replacement can't go on where this one is.
                incomplete.error.hint += (
                    " It is made, and marked as tainted: the next apply replaces it. terraform "
                    "untaint ADDRESS keeps it, when what is wrong can be mended otherwise or only "
                    "takes its time."
                )
            self.report(diags, request, f"{what} completely", incomplete.error)
        except Exception as error:
            self.report(diags, request, what, error)
        return pb.ApplyResourceChange.Response(
            new_state=_NOTHING if state is None else to_dynamic_value(state),
            diagnostics=diags.to_pb(),
        )

    # -- both ---------------------------------------------------------------------------------

    def report(self, diags: Diagnostics, request: Any, what: str, error: Exception) -> None:
        """Add what was raised to the diagnostics."""
        if not isinstance(error, ServiceError):
            log.error("%s", type(request).__qualname__, exc_info=error)
            diags.add_error(
                f"{what}: the provider failed",
                f"{type(error).__name__}: {error}\n"
                "\n"
                "This is a bug of the provider; TF_LOG=ERROR shows where. Please report it.",
            )
            return
        type_name = getattr(request, "type_name", "")
        try:
            if isinstance(request, pb.ReadDataSource.Request):
                shown: Any = self.app.new_data_source(self._get_ds_cls(type_name))
            else:
                shown = self.app.new_resource(self._get_res_cls(type_name))
        except KeyError:
            diags.add_error(f"{what}: {error.code}", f"{error.message}\n\n{error.hint}")
            return
        shown.report(diags, what, error)

    def _resource(self, type_name: str) -> tuple[ServiceResource, dict[str, Field]]:
        resource = cast("ServiceResource", self.app.new_resource(self._get_res_cls(type_name)))
        return resource, {field.name: field for field in resource.fields}


def _knows_write_only(request: Any) -> bool:
    """Say whether core has write-only arguments: ``client_capabilities``, of protocol 6.8, which
    ``tf`` 1.2's messages don't have yet.
    """
    return any(
        field.field_number == _CLIENT_CAPABILITIES and _WRITE_ONLY_ALLOWED in field.data
        for field in UnknownFieldSet(request)
    )


def _planned(
    fields: Mapping[str, Field],
    config: Mapping[str, Any],
    proposed: Mapping[str, Any],
    prior: State | None,
) -> tuple[State, set[str]]:
    """Give the planned state, and which attributes change by it; all of a new object's."""
    planned: State = {}
    for name, field in fields.items():
        if field.write_only:
            planned[name] = None
        elif config.get(name) is not None or not field.computed:
            planned[name] = proposed.get(name)
        elif field.default is not Unknown:
            planned[name] = field.default
        else:
            planned[name] = Unknown if prior is None else prior.get(name)
    if prior is None:
        return planned, set(fields)
    changed = {name for name, field in fields.items() if not field.same(planned[name], prior[name])}
    if changed:
        for name, field in fields.items():
            if field.computed and not field.optional and not field.stable:
                planned[name] = Unknown
    return planned, changed
