"""A process that is forked while a slot is open has neither its threads nor its connection: there
nothing waits for them, and the slot stays the parent's.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.cluster import Database
    from harness.service import Service

TOKEN = "the client's token"
PACKAGE = Path(__file__).resolve().parents[3] / "client" / "src"
#: Says what came of it in the child, which is killed if that takes long; then the parent goes on.
PROGRAM = """
import os, sys, time
from spillway_client import InvalidUse, Slot, exported_snapshot

address, name, step = sys.argv[1:]
arguments = {"token": "the client's token", "publications": [name], "confirm_seconds": 0.05}


def in_child(slot, transactions, first):
    if step == "close":
        slot.close()
    elif step == "leave":
        slot.__exit__(SystemExit, SystemExit(0), None)
    elif step == "next":
        next(transactions)
    elif step == "loop":
        next(iter(slot))
    elif step == "open":
        slot.open()
    elif step == "confirm":
        slot.confirm(first)
    elif step == "another":
        with Slot(address, name + "_2", **arguments) as another:
            next(iter(another))
    elif step == "snapshot":
        with exported_snapshot(address, name, token=arguments["token"]):
            pass


def told(*given):
    try:
        in_child(*given)
    except InvalidUse as error:
        return error.message
    return "nothing"


if step == "closed":
    with Slot(address, name + "_3", **arguments) as slot:
        next(iter(slot))
slot = Slot(address, name, **arguments)
if step == "closed":
    step = "another"
    given = (slot, None, None)
else:
    slot.open()
    transactions = iter(slot)
    given = (slot, transactions, next(transactions))
child = os.fork()
if child == 0:
    print("child:", told(*given), flush=True)
    os._exit(0)
for _ in range(100):
    if os.waitpid(child, os.WNOHANG)[0]:
        break
    time.sleep(0.1)
else:
    print("child: hangs", flush=True)
    os.kill(child, 9)
    os.waitpid(child, 0)
if given[1] is None:
    slot.open()
    transactions = iter(slot)
    next(transactions)
print("parent:", len(next(transactions).changes), slot.reconnects)
slot.close()
"""
INHERITED = "the slot was opened by the process that this one was forked from"
OTHERS = "this process was forked from one that was connected to a service"


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("close", "nothing"),
        ("leave", "nothing"),
        ("next", INHERITED),
        ("loop", INHERITED),
        ("open", INHERITED),
        ("confirm", INHERITED),
        ("another", OTHERS),
        ("snapshot", OTHERS),
        # gRPC's threads outlive its connections by some seconds.
        ("closed", OTHERS),
    ],
)
def test_a_forked_process(service: Service, database: Database, step: str, told: str) -> None:
    name = f"s{secrets.token_hex(4)}"
    with database.connect() as source:
        source.execute(f"CREATE SCHEMA {name}")
        source.execute(f"CREATE TABLE {name}.t (i int)")
        source.execute(f"CREATE PUBLICATION {name} FOR TABLES IN SCHEMA {name}")
        for slot in (name, f"{name}_2", f"{name}_3"):
            service.create_slot(slot, database.name, "pgoutput")
        source.execute(f"INSERT INTO {name}.t VALUES (1)")
        source.execute(f"INSERT INTO {name}.t VALUES (1), (2)")
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM, service.grpc_address, name, step],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert program.stdout.splitlines() == [f"child: {told}", "parent: 2 0"], program.stderr
