"""Terraform's core, as far as a provider can tell: go-plugin's handshake, protocol 6, and what core
checks.

The provider runs as Terraform runs it: its own executable, in its own environment
(terraform/.venv). The messages' descriptors are asked of that environment, whose protobuf is
another release than the one here. Core's own rules are held as well: what it proposes of
configuration and state, which plans it takes for valid, and that a state is what was planned.
"""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import msgpack
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

PROJECT: Final = Path(__file__).resolve().parents[2]
TERRAFORM: Final = PROJECT / "terraform"
PYTHON: Final = TERRAFORM / ".venv" / "bin" / "python"
PROVIDER: Final = PYTHON.with_name("terraform-provider-spillway")

COOKIE: Final = "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2"
#: A value that only the apply will tell, as the wire has it.
UNKNOWN: Final = msgpack.ExtType(0, b"\x00")

State = dict[str, Any]

_DESCRIPTORS: Final = """
import sys
from google.protobuf import descriptor_pb2
from tf.gen import grpc_controller_pb2, tfplugin_pb2
files = descriptor_pb2.FileDescriptorSet()
for module in (tfplugin_pb2, grpc_controller_pb2):
    files.file.add().ParseFromString(module.DESCRIPTOR.serialized_pb)
sys.stdout.buffer.write(files.SerializeToString())
"""


@dataclass(frozen=True)
class Diagnostic:
    """What the provider says beside its answer."""

    severity: str
    summary: str
    detail: str
    path: tuple[Any, ...]


class Refused(Exception):
    """The provider answered with errors; ``state`` is what it says is there all the same."""

    def __init__(self, diagnostics: list[Diagnostic], state: State | None = None) -> None:
        super().__init__("\n".join(f"{d.path} {d.summary}: {d.detail}" for d in diagnostics))
        self.diagnostics = diagnostics
        self.state = state

    @property
    def only(self) -> Diagnostic:
        assert len(self.diagnostics) == 1, self.diagnostics
        return self.diagnostics[0]


@dataclass(frozen=True)
class Plan:
    """What is to become of an object."""

    type_name: str
    prior: State | None
    planned: State | None
    config: State | None
    #: attributes for whose sake it is replaced
    replaces: frozenset[str] = field(default_factory=frozenset)

    @property
    def action(self) -> str:
        if self.replaces:
            return "replace"
        if self.prior is None:
            return "create"
        if self.planned is None:
            return "delete"
        return "no-op" if self.prior == self.planned else "update"

    @property
    def changes(self) -> set[str]:
        """The attributes that differ afterwards, or may."""
        assert self.prior is not None
        assert self.planned is not None
        return {name for name in self.planned if self.planned[name] != self.prior[name]}


@cache
def _messages() -> descriptor_pool.DescriptorPool:
    assert PYTHON.exists(), f"{PYTHON} is not there: make install"
    answer = subprocess.run(
        [PYTHON, "-c", _DESCRIPTORS], check=True, capture_output=True, timeout=120
    )
    files = descriptor_pb2.FileDescriptorSet.FromString(answer.stdout)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(empty_pb2.DESCRIPTOR.serialized_pb)
    for file in files.file:
        pool.Add(file)
    return pool


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_messages().FindMessageTypeByName(name))


class Core:
    """A provider's process, and what core would do with it."""

    def __init__(self, **environment: str) -> None:
        _messages()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SPILLWAY_")}
        self.process = subprocess.Popen(
            [PROVIDER],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={
                **inherited,
                "TF_PLUGIN_MAGIC_COOKIE": COOKIE,
                "PLUGIN_PROTOCOL_VERSIONS": "5,6",
                **environment,
            },
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the provider ended: {self.process.communicate()}")
        core, protocol, network, address, kind, certificate = line.strip().split("|")
        assert (core, protocol, network, kind) == ("1", "6", "unix", "grpc")
        der = base64.b64decode(certificate + "=" * (-len(certificate) % 4))
        self.socket = Path(address)
        self._channel = grpc.secure_channel(
            f"unix:{address}",
            grpc.ssl_channel_credentials(ssl.DER_cert_to_PEM_cert(der).encode()),
            options=[("grpc.ssl_target_name_override", "localhost")],
        )
        self.warnings: list[Diagnostic] = []
        self._schema: Any = None
        #: as Terraform does from 1.11 on
        self.knows_write_only = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> str:
        """End the provider as core does, and give what it logged."""
        if self.process.poll() is None:
            self._unary(
                "plugin.GRPCController", "Shutdown", _message("plugin.Empty")(), "plugin.Empty"
            )
        _, logged = self.process.communicate(timeout=60)
        self._channel.close()
        assert self.process.returncode == 0, logged
        return logged

    def call(self, method: str, **fields: Any) -> Any:
        """Make a call of protocol 6; DynamicValue fields are given as plain values."""
        request = _message(f"tfplugin6.{method}.Request")()
        if method == "ValidateResourceConfig" and self.knows_write_only:
            # client_capabilities { write_only_attributes_allowed: true }
            request.MergeFromString(b"\x1a\x02\x10\x01")
        for name, value in fields.items():
            of = request.DESCRIPTOR.fields_by_name[name]
            if of.message_type is not None and of.message_type.name == "DynamicValue":
                getattr(request, name).msgpack = msgpack.packb(value)
            else:
                setattr(request, name, value)
        return self._unary("tfplugin6.Provider", method, request, f"tfplugin6.{method}.Response")

    def _unary(self, service: str, method: str, request: Any, response: str) -> Any:
        call = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_message(response).FromString,
        )
        return call(request, timeout=300)

    # -- what core does -----------------------------------------------------------------------

    def schema(self) -> Any:
        if self._schema is None:
            self._schema = self._checked(self.call("GetProviderSchema"))
        return self._schema

    def configure(self, **config: Any) -> None:
        whole = self._whole(self.schema().provider, config)
        self._checked(self.call("ValidateProviderConfig", config=whole))
        self._checked(self.call("ConfigureProvider", terraform_version="1.11.4", config=whole))

    def validate(self, type_name: str, config: Mapping[str, Any]) -> None:
        whole = self._whole(self.schema().resource_schemas[type_name], config)
        self._checked(self.call("ValidateResourceConfig", type_name=type_name, config=whole))

    def plan(self, type_name: str, prior: State | None, config: Mapping[str, Any] | None) -> Plan:
        """Validate and plan; a replacement is planned twice, as core does."""
        schema = self.schema().resource_schemas[type_name]
        if config is None:
            answer = self._checked(
                self.call(
                    "PlanResourceChange",
                    type_name=type_name,
                    prior_state=prior,
                    proposed_new_state=None,
                    config=None,
                )
            )
            assert _read(answer.planned_state) is None
            return Plan(type_name, prior, None, None)
        whole = self._whole(schema, config)
        self.validate(type_name, config)
        planned, replaces = self._plan(type_name, schema, prior, whole)
        if replaces:
            assert prior is not None
            assert any(planned[name] != prior[name] for name in replaces)
            planned, _ = self._plan(type_name, schema, None, whole)
        return Plan(type_name, prior, planned, whole, replaces)

    def _plan(
        self, type_name: str, schema: Any, prior: State | None, config: State
    ) -> tuple[State, frozenset[str]]:
        proposed = {
            a.name: prior[a.name]
            if prior and a.computed and config[a.name] is None
            else config[a.name]
            for a in schema.block.attributes
        }
        answer = self._checked(
            self.call(
                "PlanResourceChange",
                type_name=type_name,
                prior_state=prior,
                proposed_new_state=proposed,
                config=config,
            )
        )
        planned: State = _read(answer.planned_state)
        assert set(planned) == {a.name for a in schema.block.attributes}
        for attribute in schema.block.attributes:
            name = attribute.name
            if is_write_only(attribute):
                assert planned[name] is None, f"core refuses this plan of {name}"
            elif config[name] is not None:
                allowed = [config[name]] + ([prior[name]] if prior else [])
                assert planned[name] in allowed, (
                    f"core refuses this plan of {name}: {planned[name]!r}"
                )
            elif not attribute.computed:
                assert planned[name] is None, f"core refuses this plan of {name}: {planned[name]!r}"
        return planned, frozenset(path.steps[0].attribute_name for path in answer.requires_replace)

    def apply(self, plan: Plan) -> State | None:
        """Do what was planned."""
        if plan.action == "no-op":
            return plan.prior
        if plan.action == "replace":
            self._apply(plan.type_name, plan.prior, None, None)
            return self._apply(plan.type_name, None, plan.planned, plan.config)
        return self._apply(plan.type_name, plan.prior, plan.planned, plan.config)

    def change(self, plan: Plan) -> State:
        """Do a plan that leaves a resource, and return what it is then."""
        state = self.apply(plan)
        assert state is not None
        return state

    def _apply(
        self, type_name: str, prior: State | None, planned: State | None, config: State | None
    ) -> State | None:
        answer = self.call(
            "ApplyResourceChange",
            type_name=type_name,
            prior_state=prior,
            planned_state=planned,
            config=config,
        )
        state: State | None = _read(answer.new_state)
        self._checked(answer, state)
        if planned is None:
            assert state is None
            return None
        assert state is not None
        for attribute in self.schema().resource_schemas[type_name].block.attributes:
            assert not is_write_only(attribute) or state[attribute.name] is None
        for name, value in planned.items():
            if value != UNKNOWN:
                assert state[name] == value, f"core finds another {name} than was planned"
        assert UNKNOWN not in state.values()
        return state

    def make(self, type_name: str, **config: Any) -> State:
        """Plan and apply something new."""
        state = self.apply(self.plan(type_name, None, config))
        assert state is not None
        return state

    def destroy(self, type_name: str, prior: State) -> None:
        self.apply(self.plan(type_name, prior, None))

    def read(self, type_name: str, state: State) -> State | None:
        """Refresh."""
        answer = self.call("ReadResource", type_name=type_name, current_state=state)
        self._checked(answer)
        found: State | None = _read(answer.new_state)
        return found

    def import_(self, type_name: str, name: str) -> State:
        """Import, and refresh as core does next."""
        answer = self._checked(self.call("ImportResourceState", type_name=type_name, id=name))
        (found,) = answer.imported_resources
        assert found.type_name == type_name
        state = self.read(type_name, _read(found.state))
        assert state is not None
        return state

    def upgrade(self, type_name: str, version: int, state: str) -> State:
        """Read a state file that an older provider wrote, as JSON text."""
        request = _message("tfplugin6.UpgradeResourceState.Request")(
            type_name=type_name, version=version
        )
        request.raw_state.json = state.encode()
        answer = self._unary(
            "tfplugin6.Provider",
            "UpgradeResourceState",
            request,
            "tfplugin6.UpgradeResourceState.Response",
        )
        upgraded: State = _read(self._checked(answer).upgraded_state)
        return upgraded

    def data(self, type_name: str, **config: Any) -> State:
        """Read a data source."""
        whole = self._whole(self.schema().data_source_schemas[type_name], config)
        self._checked(self.call("ValidateDataResourceConfig", type_name=type_name, config=whole))
        answer = self._checked(self.call("ReadDataSource", type_name=type_name, config=whole))
        state: State = _read(answer.state)
        return state

    def _whole(self, schema: Any, config: Mapping[str, Any]) -> State:
        """Fill in null for what a configuration doesn't have, as core does, and refuse what core
        refuses.
        """
        return _whole(schema.block.attributes, config)

    def _checked(self, answer: Any, state: State | None = None) -> Any:
        found = [
            Diagnostic(
                {1: "error", 2: "warning"}[d.severity],
                d.summary,
                d.detail,
                tuple(getattr(step, step.WhichOneof("selector")) for step in d.attribute.steps),
            )
            for d in answer.diagnostics
        ]
        self.warnings += [d for d in found if d.severity == "warning"]
        if errors := [d for d in found if d.severity == "error"]:
            raise Refused(errors, state)
        return answer


def is_write_only(attribute: Any) -> bool:
    """Say whether the attribute is ``write_only``: field 11 of protocol 6.8, which the provider's
    messages have no name for.
    """
    fields: Any = UnknownFieldSet(attribute)
    return any(field.field_number == 11 and field.data for field in fields)


def _whole(attributes: Any, config: Mapping[str, Any]) -> State:
    known = {a.name: a for a in attributes}
    assert set(config) <= set(known), f"no such attribute: {set(config) - set(known)}"
    whole = {name: config.get(name) for name in known}
    for name, attribute in known.items():
        assert whole[name] is not None or not attribute.required, f"core asks for {name}"
        assert whole[name] is None or attribute.optional or attribute.required, (
            f"core refuses {name}"
        )
        given = attribute.optional or attribute.required
        value = whole[name]
        if attribute.nested_type.attributes and isinstance(value, dict) and given:
            whole[name] = _whole(attribute.nested_type.attributes, value)
    return whole


def _read(value: Any) -> Any:
    return msgpack.unpackb(value.msgpack) if value.msgpack else None
