"""Attributes as ``tf`` has them, with what a plan needs to know besides.

``tf`` 1.2 has no objects: attributes whose value is an object (protocol 6: ``nested_type``) are
:class:`NestedField`. Values travel as they are: str, int, bool, None, list, dict, and
``tf.types.Unknown`` for what only an apply will tell.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Literal

from tf.gen import tfplugin_pb2 as pb
from tf.schema import Attribute
from tf.types import Number, TfType, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tf.utils import Diagnostics

    #: Says what is wrong with a known value that is not null; None if nothing is.
    Check = Callable[[Any], str | None]
    #: Where a value is: names of attributes, and keys or numbers of elements as 1-tuples.
    Path = tuple[str | tuple[str | int], ...]


#: ``write_only = true`` of an attribute (protocol 6.8: field 11), which ``tf`` 1.2's messages don't
#: have yet. What a message has no name for it keeps and sends all the same.
_WRITE_ONLY: Final = b"\x58\x01"


def as_number(value: float | str) -> float:
    """Read a number: Terraform sends those that no double is equal to, 0.1 for one, as text."""
    return float(value) if isinstance(value, str) else value


def as_value(number: float) -> float | str:
    """Write a number as Terraform does, so that it is equal to the one in a configuration."""
    return int(number) if number == int(number) else repr(number)


class Field(Attribute):
    """An attribute.

    Args:
        name: its name.
        type_: its type.
        description: Markdown; what the documentation says.
        required: whether the configuration must have it.
        optional: whether it may.
        computed: whether the provider gives it a value where the configuration has none.
        default: that value, where it is known beforehand.
        sensitive: whether it is never shown.
        write_only: whether it is in no state and no plan: an apply alone gets it, of Terraform 1.11
            or later. It is sensitive.
        replaces: whether a change makes another object of it; or says so of the values before and
            after.
        stable: of a computed one: an update doesn't change it.
        checks: what is looked at before anything is asked of the service.
        values: the values that it may have, for documentation; checked as well.
        normal: gives equal things for values, null among them, that mean the same.
    """

    def __init__(
        self,
        name: str,
        type_: TfType,
        description: str,
        *,
        required: bool = False,
        optional: bool = False,
        computed: bool = False,
        default: Any = Unknown,
        sensitive: bool = False,
        write_only: bool = False,
        replaces: bool | Callable[[Any, Any], bool] = False,
        stable: bool = False,
        checks: Sequence[Check] = (),
        values: Sequence[str] = (),
        normal: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(
            name,
            type_,
            description,
            required=required,
            optional=optional,
            computed=computed or default is not Unknown,
            sensitive=sensitive or write_only,
            requires_replace=replaces is True,
            default=default,
        )
        self._replaces = replaces
        self.stable = stable
        self.write_only = write_only
        self.values = tuple(values)
        self._checks = tuple(checks)
        self._normal = normal

    def to_pb(self) -> pb.Schema.Attribute:
        attribute = super().to_pb()
        if self.write_only:
            attribute.MergeFromString(_WRITE_ONLY)
        return attribute

    def problems(self, value: Any, path: Path) -> Iterator[tuple[Path, str]]:
        """Give what is wrong with *value*, and where; nothing of a value that is not known yet."""
        if value is None or value is Unknown:
            return
        if self.values and value not in self.values:
            yield path, f"{value!r} is not one of {', '.join(map(repr, self.values))}"
        for check in self._checks:
            if isinstance(value, list | dict) and _has_unknown(value):
                break
            if problem := check(value):
                yield path, problem

    def replaced(self, before: Any, after: Any) -> bool:
        """Say whether a change from one value to the other makes another object of it."""
        return self._replaces if isinstance(self._replaces, bool) else self._replaces(before, after)

    def same(self, one: Any, other: Any) -> bool:
        """Say whether two values mean the same: null and empty ones do; an unknown one is like no
        other.
        """
        if _has_unknown(one) or _has_unknown(other):
            return bool(one == other)
        if self._normal is not None:
            return bool(self._normal(one) == self._normal(other))
        if one in (None, [], {}) and other in (None, [], {}):
            return True
        if isinstance(self.type, Number) and one is not None and other is not None:
            return as_number(one) == as_number(other)
        return bool(self.type.semantically_equal(one, other))


_NESTING: Final = {
    "single": pb.Schema.Object.NestingMode.SINGLE,
    "list": pb.Schema.Object.NestingMode.LIST,
}


class Object(TfType):
    """The type of a nested attribute's value: dict, or list of them."""

    def __init__(self, fields: Sequence[Field], nesting: Literal["single", "list"]) -> None:
        self.fields = {field.name: field for field in fields}
        self.nesting = nesting

    def encode(self, value: Any) -> Any:
        return value

    def decode(self, value: Any) -> Any:
        return value

    def tf_type(self) -> bytes:
        members = {
            name: json.loads(field.type.tf_type()) for name, field in sorted(self.fields.items())
        }
        one = ["object", members]
        return json.dumps(one if self.nesting == "single" else ["list", one]).encode()

    def semantically_equal(self, a_decoded: Any, b_decoded: Any) -> bool:
        if a_decoded is None or b_decoded is None:
            return a_decoded is b_decoded
        if self.nesting == "list":
            return len(a_decoded) == len(b_decoded) and all(
                self._equal(one, other) for one, other in zip(a_decoded, b_decoded, strict=True)
            )
        return self._equal(a_decoded, b_decoded)

    def _equal(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        return all(
            field.same(one.get(name), other.get(name)) for name, field in self.fields.items()
        )


class NestedField(Field):
    """An attribute whose value is an object, or a list of them."""

    def __init__(
        self,
        name: str,
        fields: Sequence[Field],
        description: str,
        *,
        nesting: Literal["single", "list"] = "single",
        **more: Any,
    ) -> None:
        super().__init__(name, Object(fields, nesting), description, **more)
        self.fields = tuple(fields)
        self.nesting = nesting

    def to_pb(self) -> pb.Schema.Attribute:
        attribute = super().to_pb()
        attribute.type = b""
        attribute.nested_type.CopyFrom(
            pb.Schema.Object(
                attributes=[field.to_pb() for field in self.fields], nesting=_NESTING[self.nesting]
            )
        )
        return attribute

    def problems(self, value: Any, path: Path) -> Iterator[tuple[Path, str]]:
        if value is None or value is Unknown:
            return
        yield from super().problems(value, path)
        if self.nesting == "single":
            for field in self.fields:
                yield from field.problems(value.get(field.name), (*path, field.name))


def check_config(diags: Diagnostics, fields: Sequence[Field], config: Mapping[str, Any]) -> None:
    """Look at a whole configuration; each problem becomes an error at its place."""
    for field in fields:
        for path, problem in field.problems(config.get(field.name), (field.name,)):
            diags.add_error(f"Invalid {_text(path)}", problem, path=list(path))


def _text(path: Path) -> str:
    return ".".join(str(step[0]) if isinstance(step, tuple) else step for step in path)


def _has_unknown(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_unknown(one) for one in value.values())
    if isinstance(value, list):
        return any(_has_unknown(one) for one in value)
    return value is Unknown
