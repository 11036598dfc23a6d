"""Kinds of targets by name: the built-in ones, and those that installed packages register.

A package adds a kind through the entry point group ``spillway.subscription_targets``: the entry's
name is the kind's, its value a subclass of :class:`TargetKind`. A built-in name can't be taken
over. A kind says what its targets look like, which output plugin their slots have, and which
program fills them; starting, watching and ending that program is the subscriber's.

The program is a client of the service like any other, over gRPC at ``grpc`` with SPILLWAY_TOKEN. It
ends soon after SIGTERM, may be killed at any instant, and tells of itself as
:mod:`spillway.subscriber.run_status` says. When it fails its exit code is not 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spillway.errors import InvalidRequest, PluginFailed, SpillwayError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from spillway.pg.lsn import Lsn
    from spillway.service.model import PublicationInfo
    from spillway.subscriber.model import SubscriptionSpec

ENTRY_POINT_GROUP: Final = "spillway.subscription_targets"

#: what stands before each line of a :meth:`TargetKind.drop_program` that whoever drops the
#: subscription is to read
LEFT: Final = "left: "
_BUILT_IN: Final = {
    "lake": ("spillway.subscriber.lake_target", "LakeTarget"),
    "postgres": ("spillway.subscriber.postgres_target", "PostgresTarget"),
}


class TableAction(StrEnum):
    """What can be done with one table of a subscription, while the others go on."""

    PAUSE = "pause"
    RESUME = "resume"
    #: load it anew
    RESYNC = "resync"
    #: not to, after all
    CANCEL_RESYNC = "cancel-resync"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a program is to do."""

    subscription: str
    slot: str
    source: str
    database: str
    target: Mapping[str, Any]
    #: ``schema.table``; None: all
    tables: tuple[str, ...] | None
    #: by which these were found; None: by names, or all
    publications: tuple[str, ...] | None
    #: what was in the tables before comes first, and is not there yet
    copy_data: bool
    #: what was in the tables before is the subscription's, too
    copies: bool
    #: it has followed its slot before
    has_begun: bool
    #: somebody wished it to look which tables there are, and no program has since
    refreshes: bool
    #: tables that a wish of that kind found to have left, though they may be there again
    forgets: frozenset[str]
    origin: str
    streaming: str
    two_phase: bool
    #: when it was created: microseconds since 1970
    created_us: int
    #: what commits before it and is not in the target is given up
    skip_lsn: Lsn | None
    #: host:port of the service
    grpc: str
    #: to be replaced by the program, see :mod:`spillway.subscriber.run_status`
    status_file: Path
    #: of the slot's database, password and all: never on a command line
    dsn: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Program:
    """A program, as it is started."""

    #: what every user of the machine may see: no secrets
    arguments: tuple[str, ...]
    #: over the service's own environment
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


class TargetKind(ABC):
    """One kind of targets. Stateless; methods are called on the event loop and must not block."""

    #: the output plugin of its slots
    plugin: ClassVar[str]
    #: whether its program turns two_phase on, when it opens the stream; else the slot is made so
    turns_two_phase_on: ClassVar[bool] = False
    #: whether its program has more to look up at a refresh than which tables there are
    refreshes_more: ClassVar[bool] = False
    #: whether its programs are told which tables have left (:attr:`RunPlan.forgets`), and begin
    #: anew for that alone
    forgets: ClassVar[bool] = False
    #: whether a target is looked at for a subscription that is made disabled, too
    checks_disabled: ClassVar[bool] = True
    #: whether its slots read by the publications themselves, and not by the tables that these had
    reads_by_publications: ClassVar[bool] = False
    #: whether several subscriptions may have one place
    shares_places: ClassVar[bool] = False

    @abstractmethod
    def check(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return *target* as it is to be stored and shown, ``kind`` included.

        Raises:
            InvalidRequest: it is not of this kind's form; the message says which field, and what it
                may be.
        """

    def check_without_copy(self, target: Mapping[str, Any]) -> None:  # noqa: B027 - most need nothing
        """Refuse what *target* asks for that only a subscription with ``copy_data`` can have.

        Raises:
            InvalidRequest: with what to do instead.
        """

    @abstractmethod
    def check_subscription(self, spec: SubscriptionSpec, *, only_local: bool) -> None:
        """Refuse what this kind can't do; *only_local*: the source leaves out what came in through
        an origin.

        Raises:
            UnsupportedFeature: with what to do instead.
        """

    @abstractmethod
    def check_publication(self, publication: PublicationInfo) -> None:
        """Refuse a publication that publishes less than this kind takes.

        Raises:
            UnsupportedFeature: with the table and what is the matter.
        """

    @abstractmethod
    def place(self, target: Mapping[str, Any]) -> object:
        """Return what makes it the same target: it can't be changed once changes are in it."""

    def fixed(self, target: Mapping[str, Any]) -> Mapping[str, object]:  # noqa: ARG002 - a kind's that has such
        """Return what else of it can't be changed once changes are in it, by field; all but its
        place can, unless a kind says so.
        """
        return {}

    def table_of(
        self,
        target: Mapping[str, Any],  # noqa: ARG002 - a kind's that has such
        table: str,
        above: Sequence[str],  # noqa: ARG002
    ) -> str:
        """Return under which name the target has a table; *above* are those that it is a partition
        of, its parent first.
        """
        return table

    def shown(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return the target as it may be shown: without its secrets."""
        return dict(target)

    def with_secrets(
        self,
        target: Mapping[str, Any],
        before: Mapping[str, Any],  # noqa: ARG002 - a kind's that has such
    ) -> Mapping[str, Any]:
        """Return a target that is altered, with the secrets of the one *before* where it comes as
        that was shown.
        """
        return target

    @abstractmethod
    def program(self, plan: RunPlan) -> Program:
        """Say what to start."""

    def disables(
        self,
        target: Mapping[str, Any],  # noqa: ARG002 - a kind's that has such
        error: SpillwayError,  # noqa: ARG002
    ) -> bool:
        """Say whether a subscription that failed so is to be disabled, not tried again."""
        return False

    def check_program(self, plan: RunPlan) -> Program | None:  # noqa: ARG002 - a kind's that has such
        """Say what looks, before anything is made, whether the target can be filled; it fails if
        not. None: nothing does.
        """
        return None

    def table_program(
        self,
        plan: RunPlan,  # noqa: ARG002 - a kind's that has such
        table: str,  # noqa: ARG002
        action: TableAction,  # noqa: ARG002
    ) -> Program | None:
        """Say what does that to one table, ``schema.table``, beside the running program, or makes
        it durable that the program is to; it ends in seconds. None: nothing does.
        """
        return None

    def verify_program(
        self,
        plan: RunPlan,  # noqa: ARG002 - a kind's that has such
        tables: Sequence[str],  # noqa: ARG002
        outcome: Path,  # noqa: ARG002
    ) -> Program | None:
        """Say what compares *tables*, all without any, with the source, beside the running program,
        and writes what it found to *outcome* (:mod:`spillway.lake.verify.outcome`). None: nothing
        does.
        """
        return None

    def drop_program(self, plan: RunPlan) -> Program | None:  # noqa: ARG002 - a kind's that has such
        """Say what removes what the subscription keeps on its target, but for its data; it prints
        what is left for a person to do, behind :data:`LEFT`. None: nothing does.
        """
        return None

    def left_program(self, plan: RunPlan) -> Program | None:  # noqa: ARG002 - a kind's that has such
        """Say what prints how that is removed by hand, for a target that can't be reached; it asks
        nobody. None: nothing does.
        """
        return None


def target_kind(name: object) -> TargetKind:
    """Return the kind *name*.

    Raises:
        InvalidRequest: there is none of that name.
        PluginFailed: an installed package has it, and it can't be loaded.
    """
    if not isinstance(name, str) or not name:
        raise InvalidRequest(
            "the target has no kind", hint=f'Give it a "kind": {", ".join(kind_names())}.'
        )
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name]
        built_in: TargetKind = getattr(import_module(module), attribute)()
        return built_in
    entry = _registered().get(name)
    if entry is None:
        raise InvalidRequest(
            f'the target kind "{name}" is not known',
            hint=f"There are: {', '.join(kind_names())}.",
            kind=name,
        )
    try:
        loaded = entry.load()()
    except SpillwayError:
        raise
    except Exception as error:
        raise _unloadable(entry, repr(error)) from error
    if not isinstance(loaded, TargetKind):
        raise _unloadable(entry, "it is no TargetKind")
    return loaded


def kind_names() -> tuple[str, ...]:
    """Return the kinds there are, sorted."""
    return tuple(sorted({*_BUILT_IN, *_registered()}))


def _unloadable(entry: EntryPoint, why: str) -> PluginFailed:
    return PluginFailed(
        f'target kind "{entry.name}" ({entry.value}) can\'t be loaded: {why}',
        hint="Mend or remove the package that registers it.",
        kind=entry.name,
    )


@cache
def _registered() -> dict[str, EntryPoint]:
    return {
        entry.name: entry
        for entry in entry_points(group=ENTRY_POINT_GROUP)
        if entry.name not in _BUILT_IN
    }
