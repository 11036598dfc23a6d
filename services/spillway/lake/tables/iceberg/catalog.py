"""Where a lake's Iceberg tables are registered: a catalog of the lake's own, or one that the user
has.

::

    <lake>/catalog.db                       a catalog of the lake's own: PyIceberg's SqlCatalog on
                                            SQLite
    <lake>/_spillway/iceberg.json           which one it is, for whoever reads, verifies or
                                            maintains the lake later

A catalog by name is PyIceberg's to load: REST, Glue, Hive, SQL and others, as ``.pyiceberg.yaml``
or PYICEBERG_CATALOG__* say. Whatever it is, a table's commit is its compare-and-swap of the table's
metadata, and files are below the lake's path.

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
from dataclasses import asdict, dataclass
from importlib import util
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import (
    InvalidRequest,
    LakeError,
    LakeTableConflict,
    SpillwayError,
    UnsupportedFeature,
)
from spillway.installation import how_to_install
from spillway.storage.place import ObjectPath, replace_json, stored_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from spillway.storage.place import LakePath

_OWN: Final = "lake"
_FILES: Final = "spillway.lake.tables.iceberg.files.SyncedFileIO"
_OBJECTS: Final = "spillway.lake.tables.iceberg.files.StoreFileIO"
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
            f"prefix {stored.prefix!r}",
            hint="Leave --iceberg-catalog and --iceberg-prefix out, or name a path of its own.",
        )
    if stored is None:
        file = _file(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_json(file, asdict(choice))


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


class LakeCatalog:
    """The catalog of one lake. Threads share it."""

    def __init__(self, path: LakePath) -> None:
        """Open it.

        Raises:
            LakeError: it can't be.
            InvalidRequest: none was named, and the lake can't have its own.
        """
        check_installed()
        self._path = path
        choice = chosen(path)
        if choice is None:
            choice = CatalogChoice()
            check_choice("iceberg", path, choice)
            choose(path, choice)
        self._prefix = choice.prefix
        what = f"the catalog of the lake at {path}"
        with typed(what):
            try:
                self._catalog = _opened(path, choice)
            except (ValueError, OSError) as error:
                # What the configuration lacks, or where nobody answers.
                raise failed(what, error) from error

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

        with typed(f"{kind} of {name}"):
            try:
                table = self._catalog.load_table(self.identifier(kind, name))
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
        return self._own(table, kind, name)

    def create(self, kind: str, name: str, schema: Any, properties: dict[str, str]) -> Table:
        """Make a table without rows, below the lake's path."""
        namespace, _ = identifier = self.identifier(kind, name)
        where = self._path / kind / name
        with typed(f"{kind} of {name}"):
            # The library looks and then makes it: two threads that look at once would both make it.
            with _naming:
                self._catalog.create_namespace_if_not_exists(namespace)
            table = self._catalog.create_table(
                identifier, schema, location=str(where), properties=properties
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
        where = self._path / kind / name
        if isinstance(where, ObjectPath) and stored_path(table.location()) != where:
            raise LakeTableConflict(
                f"the catalog has {'.'.join(table.name())} at {table.location()}, and this lake's "
                f"is at {where}",
                hint="The lake was copied, the catalog gives tables places of its own, or another "
                "lake has the same prefix: load it afresh with an --iceberg-prefix of its own, or "
                "another catalog.",
                relation=name,
            )
        return table


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
