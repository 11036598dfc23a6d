"""What a start does not import, each in a fresh interpreter: it is most of a start's time, and much memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from alembic.script import ScriptDirectory

from spillway.store.migrate import migration_config
from spillway.store.tables import REVISION

#: Wanted by one plugin, by a row filter, by another program, or not at all.
NEVER = {
    "pyarrow": "arrow slots and row filters",
    "pandas": "Spark",
    "pyspark": "the lake",
    "alembic": "a schema of another release",
    "sqlalchemy": "a schema of another release",
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
ENGINE = {"spillway.engine": "serve", "psycopg": "sources"}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        pytest.param("spillway.cli", NEVER | INTERFACES | ENGINE, id="any command"),
        pytest.param("spillway.serve", NEVER | INTERFACES, id="decoding"),
        pytest.param("spillway.interfaces", NEVER, id="the whole service"),
    ],
)
def test_a_start_imports_what_it_needs(module: str, unwanted: dict[str, str]) -> None:
    program = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    )
    loaded = set(json.loads(done.stdout))
    assert module in loaded
    found = {name: use for name, use in unwanted.items() if name in loaded}
    assert not found, f"{module} imports what is not needed yet: {found}"


def test_the_newest_migration_is_known_without_alembic() -> None:
    """A start that found the wrong revision would import Alembic; one that found too old a one would not migrate."""
    assert ScriptDirectory.from_config(migration_config()).get_heads() == [REVISION]
