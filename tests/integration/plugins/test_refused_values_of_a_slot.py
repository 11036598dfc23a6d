"""A real slot whose WAL has values that Arrow has not: who asks is told, others get an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from harness.service import service_in_process
from spillway.consumer.grpc_slot import GrpcSlotClient
from spillway.errors import ValueNotRepresentable
from spillway.lake.shape.payload import ENVELOPE, parse_message
from spillway.lake.source.data_source import envelopes
from spillway.plugins.refused_values import MARK, OPTION, refused_of

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import Database


def test_one_tables_value_is_told_of_and_the_others_are_read(
    pg15: Database, tmp_path: Path
) -> None:
    pg15.execute("CREATE TABLE odd (id int PRIMARY KEY, at timestamptz, n numeric(6, 2))")
    pg15.execute("CREATE TABLE fine (id int PRIMARY KEY, name text)")
    with service_in_process(tmp_path / "data") as service:
        service.create_source(pg15.dsn)
        service.create_slot("s", pg15.name, "arrow")
        pg15.execute("INSERT INTO odd VALUES (1, '2024-02-29 12:00Z', 1.5)")
        pg15.execute("INSERT INTO odd VALUES (2, '-infinity', 'NaN'); INSERT INTO fine VALUES (1)")
        pg15.execute("UPDATE fine SET name = 'a'")
        service.wait_decoded("s", pg15)
        client = GrpcSlotClient(service.grpc_address, "")
        end = client.position("s").decoded_lsn
        with pytest.raises(ValueNotRepresentable, match=r"public\.odd, column at"):
            list(client.read("s", 0, end))
        bodies = list(client.read("s", 0, end, options={OPTION: MARK}))
        tables = {}
        for body in bodies:
            message = parse_message(body)
            tables[message.relation.name] = message.batch
        assert tables["public.fine"].column("name").to_pylist() == [None, "a"]
        odd = tables["public.odd"]
        assert odd.column("id").to_pylist() == [1, 2]
        assert odd.column("at").null_count == odd.column("n").null_count == 1
        told = refused_of(odd.schema)
        assert told is not None
        assert [(v.column, v.row, v.value) for v in told.values] == [
            ("at", 1, "-infinity"), ("n", 1, "NaN"),
        ]  # fmt: skip
        commits = odd.column("_commit_lsn").to_pylist()
        assert {int(v.commit_lsn) for v in told.values} == {commits[1]}
        # It comes with the schema of an envelope, which is all that a job's driver sees of it.
        rows = pa.Table.from_batches(envelopes(iter(bodies), 0, end, ENVELOPE)).to_pylist()
        schemas = [
            pa.ipc.read_schema(pa.py_buffer(row["arrow_schema"]))
            for row in rows
            if row["relation"] == "public.odd"
        ]
        assert [refused_of(schema) for schema in schemas] == [told]
        service.drop_slot("s")
        service.call("DELETE", "/sources/main")
