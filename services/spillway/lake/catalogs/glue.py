"""AWS Glue's data catalog, by AWS's own client, which has address, region and keys from its
environment.

An entry has what Athena, Trino and Spark each look for: ``table_type`` and Spark's provider, the
location, and the columns, which Glue's own pages show.
"""

from __future__ import annotations

from importlib import util
from typing import TYPE_CHECKING, Any, Final

from spillway.errors import LakeError
from spillway.installation import how_to_install
from spillway.lake.catalogs.contract import (
    INPUT_FORMAT,
    MADE_BY,
    OUTPUT_FORMAT,
    PARAMETERS,
    SERDE,
    conflict,
    same_place,
    serde_parameters,
)

if TYPE_CHECKING:
    from spillway.lake.catalogs.contract import Entry

_PARAMETERS: Final = {**PARAMETERS, "classification": "delta", "table_type": "DELTA"}


class GlueCatalog:
    """See the module, and :class:`spillway.lake.catalogs.contract.Catalog`."""

    def __init__(self) -> None:
        """Connect; nothing is asked yet.

        Raises:
            LakeError: AWS's client is not installed.
        """
        if util.find_spec("boto3") is None:
            raise LakeError("boto3 is not installed", hint=how_to_install("glue"))
        import boto3  # noqa: PLC0415 - an extra, checked above
        from botocore.config import Config  # noqa: PLC0415 - comes with it

        retries: Any = {"max_attempts": 2}
        config = Config(connect_timeout=10, read_timeout=20, retries=retries)
        self._client: Any = boto3.client("glue", config=config)

    def put(self, entry: Entry) -> None:
        """Make the entry, or have the one that is there tell the table's columns."""
        found, wanted = self._found(entry), _table(entry)
        if found is None:
            self._make_database(entry.database)
            self._client.create_table(DatabaseName=entry.database, TableInput=wanted)
            return
        if not same_place(_location(found), entry.location):
            raise conflict(entry, _location(found))
        there = [(c["Name"], c.get("Type")) for c in found["StorageDescriptor"].get("Columns", ())]
        if there != [tuple(column) for column in entry.columns]:
            # What others have set stays.
            wanted["Parameters"] = {**found.get("Parameters", {}), **wanted["Parameters"]}
            self._client.update_table(DatabaseName=entry.database, TableInput=wanted)

    def remove(self, entry: Entry) -> None:
        """Remove the entry, not the table."""
        found = self._found(entry)
        if found is not None and same_place(_location(found), entry.location):
            self._client.delete_table(DatabaseName=entry.database, Name=entry.name)

    def _found(self, entry: Entry) -> dict[str, Any] | None:
        try:
            answer = self._client.get_table(DatabaseName=entry.database, Name=entry.name)
        except self._client.exceptions.EntityNotFoundException:
            return None
        found: dict[str, Any] = answer["Table"]
        return found

    def _make_database(self, name: str) -> None:
        try:
            self._client.get_database(Name=name)
        except self._client.exceptions.EntityNotFoundException:
            try:
                self._client.create_database(DatabaseInput={"Name": name})
            except self._client.exceptions.AlreadyExistsException:
                return


def _table(entry: Entry) -> dict[str, Any]:
    return {
        "Name": entry.name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {**_PARAMETERS, MADE_BY: entry.lake},
        "StorageDescriptor": {
            "Columns": [{"Name": name, "Type": type_} for name, type_ in entry.columns],
            "Location": entry.location,
            "InputFormat": INPUT_FORMAT,
            "OutputFormat": OUTPUT_FORMAT,
            "SerdeInfo": {
                "SerializationLibrary": SERDE,
                "Parameters": serde_parameters(entry),
            },
        },
    }


def _location(table: dict[str, Any]) -> str:
    return str(table.get("StorageDescriptor", {}).get("Location", ""))
