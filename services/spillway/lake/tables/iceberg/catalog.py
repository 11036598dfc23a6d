"""Where a lake's Iceberg tables are registered: a catalog of the lake's own, or one that the user
has.

::

    <lake>/catalog.db                       a catalog of the lake's own: PyIceberg's SqlCatalog on
                                            SQLite
    <lake>/_spillway/iceberg.json           which one it is, for whoever reads, verifies or
                                            maintains the lake later

A catalog by name is PyIceberg's to load: REST, Glue, Hive, SQL and others, as ``.pyiceberg.yaml``
or PYICEBERG_CATALOG__* say. Whatever it is, a table's commit is its compare-and-swap of the table's
metadata, and files are below the lake's path. If the catalog is to say where they lie
(``--iceberg-location catalog``), there is a file instead, ``<kind>/<table>/place``, and a property
of the table's says whose it is.

A lake on object storage has none of its own: a database is a file that is locked and written in
place, which an object is not. So one is named before there are tables. It may know other lakes'
tables, and a lake that was copied to another prefix still names it; so tables whose files are
elsewhere are refused.

A table has its source's name, in a namespace for each kind and schema, of one level as not every
catalog has more: ``current_public.orders``, ``history_public.orders``, ``ddl.events``. A prefix
keeps several lakes apart in one catalog.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from importlib import util
from typing import TYPE_CHECKING, Any, Final, Protocol

from spillway.errors import (
    InvalidRequest,
    LakeError,
    LakeTableConflict,
    SpillwayError,
    UnsupportedFeature,
)
from spillway.installation import how_to_install
from spillway.storage.place import ObjectPath, replace_json, replace_text, stored_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.table import Table

    from spillway.storage.place import LakePath

_OWN: Final = "lake"
_FILES: Final = "spillway.lake.tables.iceberg.files.SyncedFileIO"
_OBJECTS: Final = "spillway.lake.tables.iceberg.files.StoreFileIO"
#: a table's property: which lake's it is
_LAKE: Final = "spillway.lake"
#: where the table is, of one that the catalog has put elsewhere
_PLACE: Final = "place"
#: of SQLite, which one thread writes at a time
_BUSY_S: Final = 60
#: What PyIceberg 0.12 writes; it reads version 3.
_VERSION_MAX: Final = 2
_naming: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class CatalogChoice:
    """Which catalog a lake's tables are in."""

    #: as PyIceberg's configuration names it; None: one of the lake's own
    catalog: str | None = None
    #: before each namespace
    prefix: str = ""
    #: lake: tables are below its path; catalog: where the catalog puts them
    location: str = "lake"


def chosen(path: LakePath) -> CatalogChoice | None:
    """Return what was stored for the lake at *path*, None when nothing was.

    Raises:
        LakeTableConflict: it can't be read.
    """
    file = _file(path)
    try:
        return CatalogChoice(**json.loads(file.read_text()))
    except FileNotFoundError:
        return None
    except (TypeError, ValueError) as error:
        raise LakeTableConflict(
            f"{file} can't be read: {error}",
            hint="It was written by another release, or is damaged.",
        ) from error


def check_choice(table_format: str, path: LakePath, choice: CatalogChoice) -> None:
    """Refuse catalogs for other formats, and lakes that need one and have none.

    Raises:
        UnsupportedFeature: the first.
        InvalidRequest: the second.
    """
    if table_format != "iceberg":
        if choice != CatalogChoice():
            raise UnsupportedFeature(
                f"catalogs are of lakes in Iceberg, and the one at {path} is of {table_format}",
                hint="Leave --iceberg-catalog and --iceberg-prefix out, or use --format iceberg.",
            )
    elif choice.location == "catalog" and choice.catalog is None:
        raise InvalidRequest(
            f"the catalog of the lake at {path} is to say where tables lie, and none is named",
            hint="Name one of PyIceberg's configuration, too: --iceberg-catalog NAME.",
        )
    elif isinstance(path, ObjectPath) and choice.catalog is None and chosen(path) is None:
        raise _unnamed(path)


def _unnamed(path: ObjectPath) -> InvalidRequest:
    return InvalidRequest(
        f"the tables of a lake of Iceberg at {path} need a catalog that is named: a bucket can't "
        "have a database",
        hint="Name one of PyIceberg's configuration (.pyiceberg.yaml, "
        "PYICEBERG_CATALOG__<NAME>__URI): --iceberg-catalog NAME.",
    )


def choose(path: LakePath, choice: CatalogChoice) -> None:
    """Store which catalog the lake at *path* is in, before it has tables.

    Raises:
        LakeTableConflict: it is in another one.
    """
    stored = chosen(path)
    if stored is not None and choice not in (stored, CatalogChoice()):
        raise LakeTableConflict(
            f"the tables of the lake at {path} are in catalog {stored.catalog or 'catalog.db'!r}, "
            f"prefix {stored.prefix!r}, places by the {stored.location}",
            hint="Leave --iceberg-catalog, --iceberg-prefix and --iceberg-location out, or name a "
            "path of its own.",
        )
    if stored is None:
        file = _file(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_json(file, asdict(choice))


def check_reachable(path: LakePath, choice: CatalogChoice) -> None:
    """Ask a catalog that is named for its namespaces.

    Raises:
        LakeError: it is not in PyIceberg's configuration, or does not answer.
    """
    what = f"the catalog {choice.catalog!r} can't be asked"
    try:
        _opened(path, choice).list_namespaces()
    except SpillwayError:
        raise
    except Exception as error:
        raise failed(what, error) from error


def check_installed() -> None:
    """See to it that PyIceberg is there.

    Raises:
        LakeError: it isn't.
    """
    if util.find_spec("pyiceberg") is None:
        raise LakeError(
            "PyIceberg is not installed, and the lake's tables are Iceberg's",
            hint=how_to_install("spark"),
        )


class Gathering(Protocol):
    """Commits that are made together later (:mod:`spillway.lake.tables.iceberg.together`)."""

    lake: LakePath

    def table(self, identifier: tuple[str, ...]) -> Table | None:
        """Return a table as these commits have it; None: there are none."""
        ...

    def bound(self, table: Table) -> Table:
        """Return *table* with its commits to be gathered."""
        ...


#: those of this context
gathering: ContextVar[Gathering | None] = ContextVar("gathering", default=None)


class LakeCatalog:
    """The catalog of one lake. Threads share it."""

    def __init__(self, path: LakePath) -> None:
        """Open it.

        Raises:
            LakeError: it can't be.
            InvalidRequest: none was named, and the lake can't have its own.
        """
        check_installed()
        self.path = path
        choice = chosen(path)
        if choice is None:
            choice = CatalogChoice()
            check_choice("iceberg", path, choice)
            choose(path, choice)
        self._prefix = choice.prefix
        self._places = choice.location == "catalog"
        #: tables whose place is noted in the lake
        self._noted: set[LakePath] = set()
        what = f"the catalog of the lake at {path}"
        with typed(what):
            try:
                self._catalog = _opened(path, choice)
            except (ValueError, OSError) as error:
                # What the configuration lacks, or where nobody answers.
                raise failed(what, error) from error
        self.rest = _rest(self._catalog)
        #: Whether several tables' commits can be one; None: not looked at yet.
        self.commits_together: bool | None = None

    def identifier(self, kind: str, name: str) -> tuple[str, str]:
        """Return namespace and table of a lake table."""
        schema, dot, table = name.partition(".")
        return (f"{self._prefix}{kind}_{schema}", table) if dot else (f"{self._prefix}{kind}", name)

    def load(self, kind: str, name: str) -> Table | None:
        """Return a table as it is now, None when there is none.

        Raises:
            LakeTableConflict: it is another lake's, or of a version that can't be written.
        """
        from pyiceberg.exceptions import (  # noqa: PLC0415 - an extra
            NoSuchNamespaceError,
            NoSuchTableError,
        )

        identifier = self.identifier(kind, name)
        gathered = self._gathered()
        table = None if gathered is None else gathered.table(identifier)
        if table is not None:
            return table
        with typed(f"{kind} of {name}"):
            try:
                table = self._catalog.load_table(identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
        return self._own(table, kind, name)

    def create(self, kind: str, name: str, schema: Any, properties: dict[str, str]) -> Table:
        """Make a table without rows, below the lake's path or where the catalog puts it."""
        namespace, _ = identifier = self.identifier(kind, name)
        where = self.path / kind / name
        with typed(f"{kind} of {name}"):
            # The library looks and then makes it: two threads that look at once would both make it.
            with _naming:
                self._catalog.create_namespace_if_not_exists(namespace)
            table = self._catalog.create_table(
                identifier,
                schema,
                location=None if self._places else str(where),
                properties={**properties, _LAKE: str(self.path)},
            )
        return self._own(table, kind, name)

    def _own(self, table: Table, kind: str, name: str) -> Table:
        """Return *table* if its files are this lake's, and of a version that can be written; one
        directory may have several names, one prefix has not.
        """
        if table.format_version > _VERSION_MAX:
            raise LakeTableConflict(
                f"{'.'.join(table.name())} is of format version {table.format_version}, and "
                f"PyIceberg writes up to {_VERSION_MAX}",
                hint="Another engine upgraded it, which can't be undone. Remove the table from its "
                "catalog, and load it afresh: spillway lake load --resync --table TABLE, with the "
                "job's --slot and --lake.",
                relation=name,
            )
        where, place = self.path / kind / name, stored_path(table.location())
        if self._places:
            self._check_lake(table, name)
            self._note(where, place, name)
        elif isinstance(where, ObjectPath) and place != where:
            raise LakeTableConflict(
                f"the catalog has {'.'.join(table.name())} at {table.location()}, and this lake's "
                f"is at {where}",
                hint="The lake was copied, the catalog gives tables places of its own "
                "(--iceberg-location catalog), or another lake has the same prefix: load it afresh "
                "with an --iceberg-prefix of its own, or another catalog.",
                relation=name,
            )
        gathered = self._gathered()
        return table if gathered is None else gathered.bound(table)

    def _check_lake(self, table: Table, name: str) -> None:
        """Refuse a table of another lake: its place doesn't tell."""
        lake = table.properties.get(_LAKE)
        if lake != str(self.path):
            raise LakeTableConflict(
                f"the catalog has {'.'.join(table.name())} for {lake or 'somebody else'}, and this "
                f"lake is at {self.path}",
                hint="The lake was moved or copied, or another one has the same prefix: load it "
                "afresh with an --iceberg-prefix of its own, or another catalog.",
                relation=name,
            )

    def _note(self, where: LakePath, place: LakePath, name: str) -> None:
        """Say in the lake where a table lies: its tables are listed by what is below its path."""
        if where in self._noted:
            return
        if isinstance(where, ObjectPath) != isinstance(place, ObjectPath):
            raise LakeTableConflict(
                f"the catalog has put {name} at {place}, and the lake is at {self.path}",
                hint="Both must be directories, or both in buckets: name a path for the lake that "
                "is where the catalog puts tables.",
                relation=name,
            )
        if not (where / _PLACE).exists():
            where.mkdir(parents=True, exist_ok=True)
            replace_text(where / _PLACE, str(place))
        self._noted.add(where)

    def _gathered(self) -> Gathering | None:
        found = gathering.get()
        return found if found is not None and found.lake == self.path else None


def _opened(path: LakePath, choice: CatalogChoice) -> Catalog:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra

    properties = {"py-io-impl": _OBJECTS if isinstance(path, ObjectPath) else _FILES}
    if choice.catalog is not None:
        return load_catalog(choice.catalog, **properties)
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - an extra

    path.mkdir(parents=True, exist_ok=True)
    database = path / "catalog.db"
    return SqlCatalog(
        _OWN,
        uri=f"sqlite:///{database}?timeout={_BUSY_S}",
        warehouse=str(path),
        **properties,
    )


def _rest(catalog: Catalog) -> RestCatalog | None:
    from pyiceberg.catalog.rest import RestCatalog  # noqa: PLC0415 - an extra

    return catalog if isinstance(catalog, RestCatalog) else None


@contextmanager
def typed(what: str) -> Iterator[None]:
    """Raise what PyIceberg, or the catalog's database, refuses as an error of ours."""
    try:
        yield
    except SpillwayError:
        raise
    except Exception as error:
        module = type(error).__module__
        if not module.startswith(("pyiceberg", "sqlalchemy")):
            raise
        text = str(error).partition("\n")[0]
        if type(error).__name__ in {"CommitFailedException", "ValidationException"}:
            raise LakeTableConflict(
                f"{what}: another commit came first: {text}",
                hint="Something else writes to the lake's tables; the job goes on from what is "
                "there when it is run again.",
            ) from error
        raise failed(what, error) from error


def failed(what: str, error: Exception) -> LakeError:
    """Return what to raise for an error of the library's or of the catalog's."""
    text = str(error).partition("\n")[0]
    return LakeError(
        f"{what}: Iceberg failed with {type(error).__name__}: {text}",
        hint="Can the catalog be reached, and does PyIceberg's configuration name it "
        "(.pyiceberg.yaml, PYICEBERG_CATALOG__<NAME>__URI)?",
    )


def _file(lake: LakePath) -> LakePath:
    return lake / "_spillway" / "iceberg.json"
