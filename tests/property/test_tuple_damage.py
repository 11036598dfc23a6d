"""Damaged changes give a typed error or some text, never a crash, a hang or a read beyond the
change.

Rows of every type, as a real server wrote them, with bytes flipped, cut and swapped. A failure is
replayed by its seed, which the test prints.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from harness import heap_rows
from harness.damage import damage, rows_of_every_type
from spillway._kernels.messages.buffer import MessageBuffer
from spillway._kernels.values.datum import deform_change
from spillway._kernels.values.send.output import datum_send
from spillway.catalog.descriptor import Memberships, PublicationOptions
from spillway.decoding import change_format
from spillway.decoding.transaction import TransactionHeader
from spillway.errors import DecodingError
from spillway.pg.text_settings import TextSettings
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin

if TYPE_CHECKING:
    from harness.cluster import Database

SECONDS = 10
#: The row-wise plugins with options that show most.
PLUGINS: tuple[tuple[str, dict[str, str]], ...] = (
    ("pgoutput", {"proto_version": "1", "publication_names": "p"}),
    ("pgoutput", {"proto_version": "1", "publication_names": "p", "binary": "on"}),
    ("test_decoding", {}),
    ("wal2json", {"include-pk": "1", "include-type-oids": "1", "include-not-null": "1"}),
    ("wal2json", {"write-in-chunks": "1", "include-domain-data-type": "1"}),
    ("wal2json", {"format-version": "2", "include-pk": "1", "include-lsn": "1"}),
)
HEADER = TransactionHeader(700, 1, 2, 3, 0)
#: What no real value needs: a message of one damaged row.
MESSAGE_BYTES_MAX = 4 << 20


def test_damage_gives_typed_errors(pg18: Database) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    descriptor, rows, toast = rows_of_every_type(pg18)
    published = PublicationOptions(16500, "p", all_tables=True)
    descriptor = replace(
        descriptor,
        database_publications=(published,),
        memberships=(Memberships(descriptor.oid, 2200),),
    )
    context = PluginContext("s", "d", 180000)
    plugins = [create_plugin(name, options, context) for name, options in PLUGINS]
    settings = TextSettings(180000)
    out = MessageBuffer()
    errors = located = texts = 0
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        section = rng.choice(rows)
        if rng.random() < 0.8:
            change = heap_rows.build_change(
                change_format.UPDATE, new=damage(section, rng), old=section, toast=toast
            )
        else:
            change = damage(
                heap_rows.build_change(change_format.INSERT, new=section, toast=toast), rng
            )
        columns = rng.sample(range(len(descriptor.columns)), 4)
        try:
            new, _ = deform_change(descriptor, change)
            for i in columns:
                datum = new[i] if new is not None else None
                if isinstance(datum, bytes):
                    sent = datum_send(descriptor.columns[i], descriptor.types, settings, datum)
                    assert sent is None or len(sent) < MESSAGE_BYTES_MAX
        except DecodingError:
            pass
        plugin = rng.choice(plugins)
        plugin.begin(HEADER, out)
        try:
            plugin.changes(HEADER, memoryview(change), {1: descriptor}, out)
            texts += 1
        except DecodingError as error:
            errors += bool(error.details["lsn"])
            located += 1
        assert out.nbytes < MESSAGE_BYTES_MAX
        out.clear()
    assert errors
    assert errors == located
    assert texts
