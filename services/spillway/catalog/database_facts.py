"""What is known of a decoded database from the beginning on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """What does not change while a database is decoded, or is where it began."""

    major: int
    database_oid: int
    #: pg_database.dattablespace at bootstrap; ``StorageMap`` has it as of now
    default_tablespace: int
    #: Python's name of the server encoding, and how names that don't fit it are decoded
    encoding: str
    encoding_errors: str
