"""The commits of a batch, to all of its tables, as one commit of a REST catalog: its readers see a
batch in each of its tables, or in none.

::

    a table's commit ──▶ kept here: requirements, updates, and the metadata that they make
    a table loaded in the block ──▶ with that metadata, so that what comes next builds on it
    the block's end ──▶ POST …/transactions/commit with all of them ──▶ durable

Who commits doesn't know of it: a table that was loaded in the block has :class:`Gathered` in the
place of its catalog. Other threads, maintenance and loads, load tables as the catalog has them;
:data:`spillway.lake.tables.iceberg.catalog.gathering` is the context's own. What several commits of
one table require is required of the table as it was before the first of them: the others are about
what the first ones made.

**Nothing twice, nothing lost.** The request requires of each table that its newest snapshot is the
one that the batch was built on. So when nobody knows whether a request was carried out (the
connection broke, the catalog answered 5xx), the batch is done again: what is durable is looked up,
and of the old request and a new one the catalog takes one.

PyIceberg has no call for this endpoint; its own client sends the request, with its session and
tokens. Its errors are told apart as it does for a commit of one table.

A table that is new is made at once, and is there without rows until the batch is.

Memory: the metadata of the batch's tables.

Source: the Iceberg REST catalog's specification, ``commitTransaction``.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.catalog.rest import (
    DEFAULT_ENDPOINTS,
    VIEW_ENDPOINTS,
    Endpoint,
    HttpMethod,
    RestCatalog,
)
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    RESTError,
    UnauthorizedError,
)
from pyiceberg.table import (
    CommitTableRequest,
    CommitTableResponse,
    Namespace,
    Table,
    TableIdentifier,
)
from pyiceberg.table.update import update_table_metadata
from requests import HTTPError, RequestException

from spillway.failpoints import failpoint
from spillway.lake.tables.contract import CommitsLost
from spillway.lake.tables.iceberg.catalog import gathering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from spillway.lake.tables.iceberg.catalog import LakeCatalog
    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

_PATH: Final = "transactions/commit"
_ENDPOINT: Final = Endpoint(http_method=HttpMethod.POST, path=f"/v1/{{prefix}}/{_PATH}")
#: A catalog that doesn't answer for so long has not said what became of a commit.
_ANSWER_S: Final = 300
#: What servers answer that don't know the path, or not the method.
_UNKNOWN_PATH: Final = frozenset({404, 405, 406, 501})


@dataclass(slots=True)
class _Commits:
    """What is to be committed to one table."""

    before: TableMetadata
    table: Table
    requirements: list[TableRequirement] = field(default_factory=list)
    updates: list[TableUpdate] = field(default_factory=list)


class Gathered:
    """The commits of a block, by tables; their catalog, as far as a commit asks for one. Threads
    share it.
    """

    def __init__(self, lake: LakePath) -> None:
        self.lake = lake
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, ...], _Commits] = {}

    def table(self, identifier: tuple[str, ...]) -> Table | None:
        """Return a table as the commits here have it; None: there are none."""
        with self._lock:
            commits = self._tables.get(identifier)
            return None if commits is None else self.bound(commits.table)

    def bound(self, table: Table) -> Table:
        """Return *table* with its commits to be made here."""
        where: Any = self
        return Table(
            table.name(), table.metadata, table.metadata_location, table.io, where, table.config
        )

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Keep a commit; PyIceberg calls it as a catalog's.

        Raises:
            CommitFailedException: the table has another commit here.
        """
        with self._lock:
            commits = self._tables.get(table.name())
            if commits is None:
                commits = _Commits(table.metadata, table)
            now = commits.table.metadata
            for requirement in requirements:
                requirement.validate(now)
            for requirement in requirements:
                if requirement not in commits.requirements and _holds(requirement, commits.before):
                    commits.requirements.append(requirement)
            commits.updates += updates
            made = update_table_metadata(now, updates)
            where = commits.table.metadata_location
            commits.table = Table(
                table.name(), made, where, table.io, table.catalog, table.config
            )  # fmt: skip
            self._tables[table.name()] = commits
        return CommitTableResponse.model_construct(metadata=made, metadata_location=where)

    def _delete_old_metadata(self, *_: object) -> None:
        """Do nothing: PyIceberg asks after each commit, and the server has written none yet."""

    def requests(self) -> list[CommitTableRequest]:
        """Return what is to be committed."""
        with self._lock:
            return [
                CommitTableRequest(
                    identifier=TableIdentifier(namespace=Namespace(list(name[:-1])), name=name[-1]),
                    requirements=tuple(commits.requirements),
                    updates=tuple(commits.updates),
                )
                for name, commits in self._tables.items()
            ]


@contextmanager
def together(catalog: LakeCatalog, check: Callable[[], None]) -> Iterator[bool]:
    """Make the commits of the block, in its context and copies of it, one commit at its end, if
    *catalog* can; yield whether it can. *check* raises when this process may not write any more.

    Raises:
        CommitsLost: another commit was first, or nobody knows whether these are there.
    """
    rest = catalog.rest
    if catalog.commits_together is None:
        catalog.commits_together = rest is not None and _offers(rest)
        if rest is not None and not catalog.commits_together:
            _tell_one_by_one("it doesn't list it among its endpoints")
    if rest is None or not catalog.commits_together:
        yield False
        return
    gathered = Gathered(catalog.path)
    token = gathering.set(gathered)
    try:
        yield True
    finally:
        gathering.reset(token)
    requests = gathered.requests()
    if not requests:
        return
    check()
    failpoint("lake.before_together")
    try:
        _post(rest, requests)
    except _NotOffered as error:
        catalog.commits_together = False
        _tell_one_by_one(str(error))
        raise CommitsLost("the catalog doesn't commit several tables at once") from error
    except (
        CommitFailedException,
        CommitStateUnknownException,
        NoSuchTableError,
        RESTError,
        RequestException,
    ) as error:
        raise CommitsLost(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    failpoint("lake.after_together")


def _tell_one_by_one(why: str) -> None:
    _log.warning(
        "the catalog doesn't commit several tables at once (%s): those of a batch are committed "
        "one by one",
        why,
    )


def _offers(catalog: RestCatalog) -> bool:
    """Say whether a catalog may have the endpoint: it lists it, or it lists none at all, in whose
    place PyIceberg has a list of its own.
    """
    known = catalog._supported_endpoints  # noqa: SLF001 - the library doesn't say otherwise
    return _ENDPOINT in known or known - VIEW_ENDPOINTS == DEFAULT_ENDPOINTS


class _NotOffered(Exception):
    """The catalog doesn't have the endpoint."""


def _post(catalog: RestCatalog, requests: list[CommitTableRequest]) -> None:
    try:
        _send(catalog, requests)
    except (AuthorizationExpiredError, UnauthorizedError):
        catalog._refresh_token()  # noqa: SLF001 - as the library's own requests
        _send(catalog, requests)


def _send(catalog: RestCatalog, requests: list[CommitTableRequest]) -> None:
    changes = ",".join(request.model_dump_json() for request in requests)
    response = catalog._session.post(  # noqa: SLF001 - as the library's own requests
        catalog.url(_PATH),
        data=f'{{"table-changes":[{changes}]}}'.encode(),
        timeout=_ANSWER_S,
    )
    if response.status_code in _UNKNOWN_PATH and "NoSuch" not in response.text:
        raise _NotOffered(f"{response.status_code} {response.reason}")
    try:
        response.raise_for_status()
    except HTTPError as error:
        unknown = CommitStateUnknownException
        _handle_non_200_response(
            error,
            {404: NoSuchTableError, 409: CommitFailedException,
             500: unknown, 502: unknown, 504: unknown},
        )  # fmt: skip


def _holds(requirement: TableRequirement, before: TableMetadata) -> bool:
    try:
        requirement.validate(before)
    except CommitFailedException:
        return False
    return True
