"""The table of records: everything that a version writes has a place in it, and nothing else
has.
"""

from __future__ import annotations

import pytest

from spillway.decoding.dispatch import TABLE_SIZE, Action, action_table
from spillway.pg import rmgr
from spillway.pg.versions import WAL_VERSIONS


def entry(major: int, rmid: int, info: int) -> Action:
    return Action(action_table(WAL_VERSIONS[major])[rmid * 16 + info // 16])


@pytest.mark.parametrize("major", WAL_VERSIONS)
def test_every_info_code_that_we_have_a_name_for_is_listed(major):
    prefixes = {
        "XLOG_XACT_": rmgr.RM_XACT_ID, "XLOG_SMGR_": rmgr.RM_SMGR_ID,
        "XLOG_MULTIXACT_": rmgr.RM_MULTIXACT_ID, "XLOG_RELMAP_": rmgr.RM_RELMAP_ID,
        "XLOG_HEAP2_": rmgr.RM_HEAP2_ID, "XLOG_HEAP_": rmgr.RM_HEAP_ID,
        "XLOG_STANDBY_": rmgr.RM_STANDBY_ID, "XLOG_RUNNING_": rmgr.RM_STANDBY_ID,
        "XLOG_REPLORIGIN_": rmgr.RM_REPLORIGIN_ID, "XLOG_LOGICAL_": rmgr.RM_LOGICALMSG_ID,
        "XLOG_": rmgr.RM_XLOG_ID,
    }  # fmt: skip
    not_codes = {
        "XLOG_XACT_OPMASK",
        "XLOG_XACT_HAS_INFO",
        "XLOG_HEAP_OPMASK",
        "XLOG_HEAP_INIT_PAGE",
    }
    for name in dir(rmgr):
        if not name.startswith("XLOG_") or name in not_codes:
            continue
        if name == "XLOG_CHECKPOINT_REDO" and major < 17:
            continue
        rmid = rmgr.RM_STANDBY_ID if name == "XLOG_INVALIDATIONS" else None
        rmid = next(r for p, r in prefixes.items() if name.startswith(p)) if rmid is None else rmid
        assert entry(major, rmid, getattr(rmgr, name)) is not Action.UNKNOWN, name


@pytest.mark.parametrize("major", WAL_VERSIONS)
def test_what_no_server_writes_is_unknown(major):
    assert len(action_table(WAL_VERSIONS[major])) == TABLE_SIZE
    assert entry(major, rmgr.RM_XLOG_ID, 0xC0) is Action.UNKNOWN
    assert entry(major, rmgr.RM_XACT_ID, 0x70) is Action.UNKNOWN
    assert entry(major, rmgr.RM_STANDBY_ID, 0x30) is Action.UNKNOWN
    assert entry(major, rmgr.RM_LOGICALMSG_ID, 0x10) is Action.UNKNOWN
    assert entry(major, 100, 0x00) is Action.UNKNOWN
    assert (entry(major, 128, 0x00) is Action.UNKNOWN) == (major < 15)
    assert (entry(major, rmgr.RM_XLOG_ID, rmgr.XLOG_CHECKPOINT_REDO) is Action.UNKNOWN) == (
        major < 17
    )


def test_flags_beside_the_code_do_not_matter():
    assert (
        entry(15, rmgr.RM_HEAP_ID, rmgr.XLOG_HEAP_INSERT | rmgr.XLOG_HEAP_INIT_PAGE)
        is Action.INSERT
    )
    assert (
        entry(15, rmgr.RM_XACT_ID, rmgr.XLOG_XACT_COMMIT | rmgr.XLOG_XACT_HAS_INFO)
        is Action.PYTHON_XACT
    )
