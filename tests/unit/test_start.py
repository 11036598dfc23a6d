"""What a start does not import, each in a fresh interpreter: it is most of a start's time, and much
memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from alembic.script import ScriptDirectory

from spillway.store.metadata import MetadataStore
from spillway.store.migrate import migration_config
from spillway.store.schema import REVISION

if TYPE_CHECKING:
    from pathlib import Path

#: Wanted by one plugin, by a row filter, by another program, or not at all.
NEVER = {
    "pyarrow": "arrow slots and row filters",
    "pandas": "Spark",
    "pyspark": "the lake",
    "alembic": "a schema of another release",
    "sqlalchemy.orm": "nothing: metadata takes SQLAlchemy's Core",
    "sqlalchemy.ext.asyncio": "nothing: metadata has threads",
    "sqlalchemy.dialects.postgresql": "metadata in PostgreSQL",
    "httpx": "commands that call REST",
    "rich": "tables of commands",
}
INTERFACES = {
    "fastapi": "REST",
    "pydantic": "REST",
    "uvicorn": "REST",
    "grpc": "gRPC",
    "google.protobuf": "gRPC",
    "prometheus_client": "metrics",
}
SERVICE = {
    "spillway.service": "serve",
    "spillway.sessions": "serve",
    "spillway.delivery": "serve",
    "sqlalchemy": "metadata",
    "psycopg": "sources",
}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        pytest.param("spillway.cli", NEVER | INTERFACES | SERVICE, id="any command"),
        pytest.param("spillway.serve", NEVER | INTERFACES, id="decoding"),
        pytest.param("spillway.interfaces", NEVER, id="the whole service"),
    ],
)
def test_a_start_imports_what_it_needs(module: str, unwanted: dict[str, str]) -> None:
    loaded = _loaded_by(f"import {module}")
    assert module in loaded
    found = {name: use for name, use in unwanted.items() if name in loaded}
    assert not found, f"{module} imports what is not needed yet: {found}"


async def test_opening_a_database_that_needs_no_migration_imports_what_it_needs(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/metadata.db"
    store = MetadataStore(url)
    await store.migrate()
    await store.close()
    loaded = _loaded_by(
        "import asyncio, spillway.serve; from spillway.store.metadata import MetadataStore; "
        f"asyncio.run(MetadataStore({url!r}).migrate())"
    )
    assert "sqlalchemy.dialects.sqlite" in loaded
    assert not loaded & (NEVER.keys() | INTERFACES.keys())


def _loaded_by(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; import json, sys; print(json.dumps([*sys.modules]))"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_the_newest_migration_is_known_without_alembic() -> None:
    """A start that found the wrong revision would import Alembic; one that found too old a one
    would not migrate.
    """
    assert ScriptDirectory.from_config(migration_config()).get_heads() == [REVISION]
