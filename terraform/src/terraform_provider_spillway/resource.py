"""What all resources and data sources share: how a configuration is checked, a state is made, and
an error is shown.

A resource works on states (dicts by attribute). It never gives back a state that it has not reason
to believe: what the service answered is the state, and of what the service doesn't tell (a DSN's
password, where a slot began, the provider's own attributes) the state keeps what was applied last.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tf.iface import DataSource, ReadDataContext, Resource
from tf.schema import Schema
from tf.types import Bool, Number, Unknown

from terraform_provider_spillway import checks
from terraform_provider_spillway.schema import Field, check_config
from terraform_provider_spillway.service_client import ServiceClient, ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tf.iface import ImportContext, PlanContext, ReadContext, UpgradeContext
    from tf.utils import Diagnostics

State = dict[str, Any]

#: Errors that say that the object itself is gone; any other 404 may come from a wrong endpoint.
GONE = frozenset(
    {
        "unknown_source",
        "unknown_slot",
        "unknown_subscription",
        "unknown_alert_channel",
        "unknown_alert_rule",
    }
)

DELETION_PROTECTION = Field(
    "deletion_protection",
    Bool(),
    "Refuse to destroy or replace it while this is true in the state: set it to false and apply "
    "first.",
    optional=True,
    default=False,
)


def wait_timeout(what: str, default: int = 300) -> Field:
    """Give the attribute that bounds a wait."""
    return Field(
        "wait_timeout",
        Number(),
        f"How many seconds to wait until {what}.",
        optional=True,
        default=default,
        checks=[checks.positive],
    )


class Incomplete(Exception):
    """It was made but is not what was asked for (yet): the state is kept, Terraform marks the
    object as tainted.
    """

    def __init__(self, state: State, error: ServiceError) -> None:
        super().__init__(error.message)
        self.state = state
        self.error = error


@dataclass
class Connection:
    """What a provider's configuration came to; ``client`` is None while it is not known."""

    client: ServiceClient | None = None

    def service(self) -> ServiceClient:
        """Give the service.

        Raises:
            ServiceError: the provider's configuration has values that only the apply will tell.
        """
        if self.client is None:
            raise ServiceError(
                "the provider is not configured: its endpoint or token is not known before the "
                "apply",
                code="not_configured",
                hint="Give the provider values that are known when planning, or apply in two steps "
                "(-target).",
            )
        return self.client


class _Named:
    """What resources and data sources have in common."""

    name: ClassVar[str]
    description: ClassVar[str]
    fields: ClassVar[Sequence[Field]]
    version: ClassVar[int] = 0
    #: Code of an error of the service → the attribute that it is about.
    places: ClassVar[Mapping[str, str]] = {}

    def __init__(self, provider: Any) -> None:
        self.connection: Connection = provider.connection

    @classmethod
    def get_name(cls) -> str:
        return cls.name

    @classmethod
    def get_schema(cls) -> Schema:
        return Schema(attributes=list(cls.fields), version=cls.version, description=cls.description)

    @property
    def service(self) -> ServiceClient:
        return self.connection.service()

    def validate(self, diags: Diagnostics, type_name: str, config: Mapping[str, Any]) -> None:
        check_config(diags, self.fields, config)

    def report(self, diags: Diagnostics, what: str, error: ServiceError) -> None:
        """Add an error of the service, with its code, its hint and the attribute that it is
        about.
        """
        hint = error.hint
        if error.code == "duplicate_name":
            hint += (
                " Or take what is there under Terraform's care: terraform import ADDRESS NAME, or "
                "an import block."
            )
        detail = "\n\n".join(
            part for part in (_sentence(error.message), hint, f"Error code: {error.code}.") if part
        )
        diags.add_error(f"{what}: {error.code}", detail, path=self.place(error))

    def place(self, error: ServiceError) -> list[str] | None:
        """Say which attribute the error is about."""
        names = {field.name for field in self.fields}
        # The service names a request's field where it can: target.path
        if (field := str(error.details.get("field", "")).split("."))[0] in names:
            return field
        if error.code in self.places:
            return [self.places[error.code]]
        for problem in error.details.get("errors") or ():
            # As the service names places in a request: body.capture.tables
            _, *place = str(problem.get("place", "")).split(".")
            if place and place[0] in names:
                return [part for part in place if not part.isdecimal()][:2]
        return None


class ServiceResource(_Named, Resource):
    """A resource; subclasses say what it is and how the service does it."""

    #: While it is applied: what the configuration has for write-only attributes.
    write_only: Mapping[str, Any] = {}

    def plan(self, ctx: PlanContext, current: State | None, planned: State) -> State:
        """Look at a plan with the service at hand: warn, or refuse what the service would
        refuse.
        """
        return planned

    def filled_in(self, config: Mapping[str, Any], planned: State) -> State:
        """Plan what follows from other attributes, where *config* doesn't say it."""
        return planned

    def plan_delete(self, diags: Diagnostics, current: State) -> None:
        """Refuse what must not be destroyed."""
        if current.get("deletion_protection") is True:
            diags.add_error(
                _sentence(f"{self.label(current)} is protected").rstrip("."),
                "deletion_protection is true in its state, so it is neither destroyed nor "
                "replaced. Set deletion_protection = false and apply; then destroy or replace it. "
                "(Where it is to be replaced only because its creation did not end well, terraform "
                "untaint keeps it.)",
                path=["deletion_protection"],
            )

    def label(self, state: State) -> str:
        """Name one of them, for messages."""
        return f'{self.name} "{self.key(state)}"'

    def key(self, state: State) -> str:
        """Give the name by which the service knows it."""
        return str(state[self.fields[0].name])

    def remove(self, *path: str, unknown: str, **query: str) -> Any:
        """Delete what is at *path*, and return the answer; None when it was gone already, which the
        service says by the code *unknown*.
        """
        try:
            return self.service.delete(*path, **query)
        except ServiceError as error:
            if error.code == unknown:
                return None
            raise

    def read(self, ctx: ReadContext, current: State) -> State | None:
        try:
            return self.fetch(ctx.diagnostics, current)
        except ServiceError as error:
            if error.code in GONE:
                return None
            raise

    def fetch(self, diags: Diagnostics, current: State) -> State:
        """Ask the service, and keep of *current* what the service doesn't tell.

        Raises:
            ServiceError: one of ``GONE`` if it is not there.
        """
        raise NotImplementedError

    def import_(self, ctx: ImportContext, id: str) -> State | None:  # noqa: A002 - tf's name
        blank: State = {field.name: None for field in self.fields}
        blank[self.fields[0].name] = id
        for field in self.fields:
            if field.optional and field.default is not Unknown:
                blank[field.name] = field.default
        return self.fetch(ctx.diagnostics, blank)

    def upgrade(self, ctx: UpgradeContext, version: int, old: State) -> State:
        """Make the present form of a state that an older provider wrote."""
        return old


class ServiceData(_Named, DataSource):
    """A data source."""

    def read(self, ctx: ReadDataContext, config: State) -> State:
        raise NotImplementedError


def wait_until(
    service: ServiceClient, timeout_s: float, what: str, look: Callable[[], str | None]
) -> None:
    """Look again and again, until *look* has nothing more to say.

    Args:
        service: whose interrupt ends the wait.
        timeout_s: when to give up.
        what: what is waited for.
        look: says why to go on waiting; raises ServiceError when it is of no use.

    Raises:
        ServiceError: it took longer.
    """
    deadline, pause_s = time.monotonic() + timeout_s, 0.1
    while reason := look():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise ServiceError(
                f"{what} took longer than {timeout_s:g} s: {reason}",
                code="timeout",
                hint="It goes on without Terraform; apply again to see. wait_timeout says how long "
                "to wait.",
            )
        service.pause(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, 2.0)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
