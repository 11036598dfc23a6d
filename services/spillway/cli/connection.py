"""Which service a command talks to, and how it asks it.

What is said nearest counts: ``--context`` on the command line, else a service that the environment
names (SPILLWAY_URL, SPILLWAY_GRPC), else SPILLWAY_CONTEXT, else the context in use, else the
defaults. A context is one thing: its token goes to its own address and never to one that the
environment names. Single variables beside a context (SPILLWAY_TOKEN, SPILLWAY_TLS_CA) win over what
it says, unless it was named on the command line.

Only commands of people ask here. What a service starts takes its own environment, whoever's
contexts lie in its user's home.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import NotFound, NotReady, SpillwayError, TlsFailed, Unauthenticated
from spillway.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spillway.cli.rest_client import RestClient

#: Either says where a service is.
_ADDRESSES: Final = ("SPILLWAY_URL", "SPILLWAY_GRPC")
_CONTEXT: Final = "SPILLWAY_CONTEXT"

#: what ``--context`` said
_asked: ContextVar[str | None] = ContextVar("asked", default=None)


def use(context: str | None) -> None:
    """Take what ``--context`` says, for the rest of this command line."""
    _asked.set(context)


def is_asked() -> bool:
    """Say whether ``--context`` was given."""
    return _asked.get() is not None


def settings() -> Settings:
    """Return the environment's settings, with those of the context that counts.

    Raises:
        InvalidRequest: a variable or the contexts' file can't be read.
        NotFound: there is no context of that name.
    """
    return Settings.from_environment(environment())


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that count for a command, those of its context among them.

    Raises:
        InvalidRequest: the contexts' file can't be read.
        NotFound: there is no context of that name.
    """
    name = context_name(given)
    if name is None:
        return dict(given)
    from spillway.cli.contexts import Contexts  # noqa: PLC0415 - who has none needs no JSON

    found = Contexts.load(given).get(name).variables(given)
    if _asked.get() is not None:
        return {**given, **found}
    set_ones = {variable: value for variable, value in given.items() if value}
    return {**found, **set_ones}


def context_name(given: Mapping[str, str] = os.environ) -> str | None:
    """Return the name of the context that counts; None without one.

    Raises:
        InvalidRequest: the contexts' file can't be read.
    """
    if asked := _asked.get():
        return asked
    if any(given.get(address) for address in _ADDRESSES):
        return None
    if named := given.get(_CONTEXT):
        return named
    from spillway.cli.contexts import Contexts  # noqa: PLC0415 - as above

    return Contexts.load(given).current


def connect(timeout_s: float | None = None) -> RestClient:
    """Make a client of the service that counts; nothing is asked yet."""
    from spillway.cli.rest_client import RestClient  # noqa: PLC0415 - as above

    found = settings()
    return RestClient(found) if timeout_s is None else RestClient(found, timeout_s=timeout_s)


def call(method: str, *path: str, **arguments: Any) -> Any:
    """Call ``/v1/PATH…`` and give the answer's JSON, as
    :meth:`spillway.cli.rest_client.RestClient.call`.

    What doesn't exist is told with the names that are like it.
    """
    with asking() as client:
        return client.call(method, *path, **arguments)


@contextmanager
def asking() -> Iterator[RestClient]:
    """Give a client of the service that counts; what goes wrong within is told as :func:`call`
    does.
    """
    with connect() as client:
        try:
            yield client
        except NotFound as error:
            from spillway.cli.similar import hint_names  # noqa: PLC0415 - on errors alone

            hint_names(error, client)
            raise
        except (NotReady, TlsFailed, Unauthenticated) as error:
            explain(error)
            raise


def explain(error: SpillwayError) -> None:
    """Say which context led there, if one did."""
    name = context_name()
    if name is not None:
        said = f'The address is that of the context "{name}": `spillway context show {name}`.'
        error.hint = f"{error.hint} {said}" if error.hint else said
