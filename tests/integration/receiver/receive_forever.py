"""A program that only receives, for tests that kill it:
``receive_forever.py DSN SLOT DIRECTORY``.
"""

from __future__ import annotations

import sys
import time

from spillway.receiver.checks import check_source
from spillway.receiver.physical_slot import create_physical_slot
from spillway.receiver.wal_writer import WalWriter
from spillway.receiver.walreceiver import ReceiverState, WalReceiver


def main(dsn: str, slot_name: str, directory: str) -> None:
    facts = check_source(dsn, slot_name=slot_name)
    store = WalWriter(
        directory,
        system_id=facts.system_id,
        segment_size=facts.wal_segment_size,
        timeline=facts.timeline,
        start_lsn=create_physical_slot(dsn, slot_name).restart_lsn,
    )
    receiver = WalReceiver(dsn, slot_name, store, sync_delay_s=0)
    receiver.start()
    while receiver.state != ReceiverState.FAILED:
        time.sleep(0.05)
    sys.exit(str(receiver.error))


if __name__ == "__main__":
    main(*sys.argv[1:])
