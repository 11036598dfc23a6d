"""What decoding takes of memory, measured in a process of its own: WAL → decoder → transaction
log → slots' readers.

:func:`memory_use` starts ``python -m harness.memory_use``, which decodes a server's WAL from a
serialised decoder's state on, then reads the log for as many slots as it is told, in turns of a
batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spillway.decoding.decoder import Decoder
from spillway.delivery.reader import SlotReader
from spillway.pg.versions import version_of_server
from spillway.plugins.interface import PluginContext
from spillway.plugins.registry import create_plugin
from spillway.txlog import LogWriter
from spillway.wal.reader import WalDirectory

if TYPE_CHECKING:
    from spillway._kernels.reorder.transaction_run import TransactionRun
    from spillway.decoding.transaction import Transaction

BATCH_BYTES = 512 * 1024


@dataclass(frozen=True)
class Task:
    """What to decode, and for whom."""

    state: str
    wal_directory: str
    upto_lsn: int
    work_directory: str
    server_version_num: int
    database: str
    database_oid: int
    work_mem_bytes: int
    plugin: str
    options: dict[str, str]
    slots: int
    #: None: transactions are not streamed
    stream_bytes: int | None


@dataclass(frozen=True)
class Use:
    """What it took beyond what the process had when its modules were loaded and its state
    restored.
    """

    decoding_bytes: int
    delivery_bytes: int
    #: payload that each slot got
    payload_bytes: int
    parts: int


def memory_use(task: Task) -> Use:
    """Do *task* in a new process."""
    done = subprocess.run(
        [sys.executable, "-m", "harness.memory_use", json.dumps(asdict(task))],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    return Use(**json.loads(done.stdout))


class _Sink:
    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self.parts = 0

    def consistent(self, lsn: int) -> None:
        self._log.start(lsn)

    def transaction(self, transaction: Transaction) -> None:
        self.parts += transaction.header.kind.name == "STREAM"
        self._log.transaction(transaction)

    def transactions(self, run: TransactionRun) -> None:
        self._log.transactions(run)

    def progress(self, decoded_lsn: int) -> None:
        self._log.progress(decoded_lsn)


def _run(task: Task) -> Use:
    directory = Path(task.work_directory)
    context = PluginContext("slot", task.database, task.server_version_num)
    # A plugin's libraries (pyarrow, of 40 MB) are loaded with its first slot, and are no slot's.
    create_plugin(task.plugin, task.options, context)
    with LogWriter(directory / "log", system_id=1, database_oid=task.database_oid) as log:
        sink = _Sink(log)
        decoder = Decoder.restore(
            Path(task.state).read_bytes(),
            version_of_server(task.server_version_num),
            sink,
            work_mem_bytes=task.work_mem_bytes,
            spill_dir=directory / "spill",
            start_decoding_at=0,
        )
        start = decoder.start_decoding_at
        if task.stream_bytes is not None:
            decoder.stream_from(decoder.position, task.stream_bytes)
        before = _peak_bytes()
        for batch in WalDirectory(Path(task.wal_directory)).batches(
            decoder.position, task.upto_lsn
        ):
            decoder.process(batch)
            log.publish()
        decoder.close()
        decoding = _peak_bytes()
        readers = [
            SlotReader.on_log(
                log.reader, create_plugin(task.plugin, task.options, context), start, task.upto_lsn
            )
            for _ in range(task.slots)
        ]
        payload = [0] * task.slots
        going = set(range(task.slots))
        _forget_peak()
        resting = _peak_bytes()
        while going:
            for number in tuple(going):
                step = readers[number].step(BATCH_BYTES)
                payload[number] += len(step.messages.payload)
                if step.exhausted or step.reached_end:
                    going.discard(number)
        delivery = _peak_bytes()
        assert len(set(payload)) == 1, payload
        for reader in readers:
            reader.close()
    return Use(decoding - before, delivery - min(before, resting), payload[0], sink.parts)


def _peak_bytes() -> int:
    (line,) = (
        s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    print(json.dumps(asdict(_run(Task(**json.loads(sys.argv[1]))))))
