"""Tables of a lake are found in catalogs by their names: a Hive metastore's, whose server PySpark
brings, and Glue's, which is moto's here.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from harness.arrow_slot import Table, insert
from harness.metastore import metastore
from harness.object_store import object_store
from spillway.errors import InvalidRequest
from spillway.lake import jars
from spillway.lake.catalogs.registration import Registration, registered
from spillway.lake.commands.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.lake import Lake

_ROOT = Path(__file__).parents[3]
ORDERS = Table("orders", {"id": pa.int64(), "status": pa.string()}, schema="shop")
WIDER = Table(
    "orders",
    {"id": pa.int64(), "status": pa.string(), "total": pa.decimal128(10, 2), "at": pa.date32()},
    schema="shop",
)
ODD = Table("Odd table", {"id": pa.int64()}, schema="shop")
TABLES = {
    "current/shop.Odd~20table": "shop.odd_table",
    "current/shop.orders": "shop.orders",
    "history/shop.Odd~20table": "shop_history.odd_table",
    "history/shop.orders": "shop_history.orders",
}


@pytest.fixture
def glue(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Run a Glue that has nothing yet, which this process's clients find; yield a client."""
    with object_store() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", environment["AWS_ENDPOINT_URL_S3"])
        monkeypatch.setenv("AWS_DEFAULT_REGION", environment["AWS_REGION"])
        yield boto3.client("glue")


def columns_in(glue: Any, database: str, name: str) -> dict[str, str]:
    found = glue.get_table(DatabaseName=database, Name=name)["Table"]["StorageDescriptor"]
    return {each["Name"]: each["Type"] for each in found["Columns"]}


def command(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["register", *arguments])


def test_glue(delta_lake: Lake, glue: Any) -> None:
    lake = delta_lake
    lake.slot.commit(insert(ORDERS, id=1, status="new"), insert(ODD, id=1))
    lake.batch()
    done = command("--lake", str(lake.path), "--register-in", "glue")
    assert done.exit_code == 0, done.output
    assert "current/shop.orders registered as shop.orders" in done.output
    assert {key: str(table) for key, table in registered(lake.path).items()} == TABLES
    assert columns_in(glue, "shop", "orders") == {"id": "bigint", "status": "string"}
    assert columns_in(glue, "shop_history", "orders").keys() >= {"_op", "_commit_lsn", "status"}
    made = glue.get_table(DatabaseName="shop", Name="orders")["Table"]
    assert made["TableType"] == "EXTERNAL_TABLE"
    assert made["StorageDescriptor"]["Location"] == f"file://{lake.path}/current/shop.orders"
    assert made["Parameters"]["table_type"] == "DELTA"
    # Somebody's own parameter stays when columns come.
    kept = {k: made[k] for k in ("Name", "TableType", "StorageDescriptor")}
    parameters = {**made["Parameters"], "owner_team": "sales"}
    glue.update_table(DatabaseName="shop", TableInput={**kept, "Parameters": parameters})
    lake.slot.commit(insert(WIDER, id=2, status="new", total=None, at=None))
    lake.batch()
    # The command knows the catalog.
    assert command("--lake", str(lake.path)).exit_code == 0
    assert columns_in(glue, "shop", "orders") == {
        "id": "bigint", "status": "string", "total": "decimal(10,2)", "at": "date",
    }  # fmt: skip
    made = glue.get_table(DatabaseName="shop", Name="orders")["Table"]
    assert made["Parameters"]["owner_team"] == "sales"
    # What somebody has dropped comes back.
    glue.delete_table(DatabaseName="shop", Name="orders")
    done = command("--lake", str(lake.path))
    assert done.exit_code == 0, done.output
    assert "current/shop.orders is there as shop.orders" in done.output
    assert columns_in(glue, "shop", "orders")["total"] == "decimal(10,2)"
    # A table whose directory is gone is in the catalog no longer.
    for kind in ("current", "history"):
        (lake.path / kind / "shop.Odd~20table").rename(lake.path / f"gone-{kind}")
    assert "current/shop.Odd~20table is no longer shop.odd_table" in (
        command("--lake", str(lake.path)).output
    )
    assert [each["Name"] for each in glue.get_tables(DatabaseName="shop")["TableList"]] == [
        "orders"
    ]
    assert command("--lake", str(lake.path), "--remove").exit_code == 0
    assert glue.get_tables(DatabaseName="shop")["TableList"] == []
    assert lake.current("shop.orders")


def test_a_name_that_another_table_has(delta_lake: Lake, glue: Any, tmp_path: Path) -> None:
    lake = delta_lake
    lake.slot.commit(insert(ORDERS, id=1, status="new"))
    lake.batch()
    glue.create_database(DatabaseInput={"Name": "shop"})
    theirs = {"Name": "orders", "StorageDescriptor": {"Location": "s3://theirs/orders"}}
    glue.create_table(DatabaseName="shop", TableInput=theirs)
    done = command("--lake", str(lake.path), "--register-in", "glue")
    assert done.exit_code == 1
    assert "the catalog has another table shop.orders, at s3://theirs/orders" in done.output
    assert "history/shop.orders registered as shop_history.orders" in done.output
    # Nor is it removed with what is the lake's.
    command("--lake", str(lake.path), "--remove")
    found = glue.get_table(DatabaseName="shop", Name="orders")["Table"]
    assert found["StorageDescriptor"]["Location"] == "s3://theirs/orders"
    # What the hint says.
    arguments = ["--lake", str(lake.path), "--register-in", "glue", "--register-prefix", "lake_"]
    assert command(*arguments).exit_code == 0
    assert columns_in(glue, "lake_shop", "orders") == {"id": "bigint", "status": "string"}


def test_a_catalog_that_is_away_stops_no_batch(
    delta_lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    lake = delta_lake
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"thrift://127.0.0.1:{nobody.getsockname()[1]}"
        lake.slot.commit(insert(ORDERS, id=1, status="new"))
        with caplog.at_level(logging.WARNING, "spillway.lake.catalogs.registration"):
            lake.run(register_in=address)
    assert lake.current("shop.orders") == [{"id": 1, "status": "new"}]
    told = [r.getMessage() for r in caplog.records if "could not be registered" in r.getMessage()]
    assert len(told) == 1
    assert f"the metastore {address}: " in told[0]
    troubles = {key: table.trouble for key, table in registered(lake.path).items()}
    assert troubles.keys() == {"current/shop.orders", "history/shop.orders"}
    assert all(f"the metastore {address}: " in trouble for trouble in troubles.values())


def test_what_is_no_catalog(delta_lake: Lake) -> None:
    lake = delta_lake
    with pytest.raises(InvalidRequest, match=r"'http://x' is no catalog"):
        lake.run(register_in="http://x")
    with pytest.raises(InvalidRequest, match="tables of format iceberg can't be registered"):
        lake.run(register_in="glue", table_format="iceberg")
    lake.slot.commit(insert(ORDERS, id=1, status="new"))
    lake.batch()
    with pytest.raises(InvalidRequest, match="were registered nowhere yet"):
        CliRunner().invoke(app, ["register", "--lake", str(lake.path)], catch_exceptions=False)


@pytest.mark.long
def test_a_hive_metastore(delta_lake: Lake, tmp_path: Path, jar_folder: Path) -> None:
    """A Spark session as the how-to makes it, in a process of its own, finds tables by name."""
    lake = delta_lake
    lake.slot.commit(insert(ORDERS, id=1, status="new"), insert(ODD, id=1))
    with metastore(tmp_path / "metastore") as address:
        lake.run(register_in=address)
        assert {key: str(table) for key, table in registered(lake.path).items()} == TABLES
        assert not any(table.trouble for table in registered(lake.path).values())
        # Its columns are those of the log, so the entry needs no change.
        lake.slot.commit(insert(WIDER, id=2, status="new", total=None, at=None))
        lake.run(register_in=address)
        how_to = (_ROOT / "docs" / "how-to" / "query-a-lake.md").read_text(encoding="utf-8")
        found = re.search(r"```python\n(from pyspark[^`]*enableHiveSupport[^`]*)```", how_to)
        assert found is not None
        said = found[1].replace("thrift://metastore:9083", address)
        said = said.replace(".show()", ".toPandas().to_json(orient='values')")
        said = re.sub(r"^(spark\.sql.*)$", r"print(\1)", said, flags=re.MULTILINE)
        paths = ",".join(str(jar_folder / jar.file_name) for jar in jars.DELTA)
        environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--jars {paths} pyspark-shell"}
        shown = subprocess.run(
            [sys.executable, "-c", said], env=environment, capture_output=True, text=True,
            check=False, timeout=300, cwd=tmp_path,
        )  # fmt: skip
        assert shown.returncode == 0, shown.stderr
        assert [json.loads(line) for line in shown.stdout.splitlines()] == [
            [["new", 2]],
            [[1, None], [2, None]],
        ]
        entries = Registration(lake.path, address, "", lake.spark)
        assert sorted(entries.remove().removed.values()) == sorted(TABLES.values())
        again = Registration(lake.path, address, "", lake.spark).keep()
        assert again.made == TABLES
        assert again.troubles == {}
