"""The data directory lost or damaged, file by file and as a whole, while the service is stopped.

One server and one recorded directory, which is copied for each case. Whatever is gone: the service
starts; a slot delivers exactly what PostgreSQL's own slot does that was made with it, or is
invalidated with a reason and has really missed something; the other database goes on. Which slots
go on is written down for each case, so that healing can't quietly do less.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from harness.oracle import create_slot
from harness.permissions import bound_by_permissions
from harness.remedies import remedy
from harness.service import service_in_process
from harness.tiers import deep
from spillway.decoding import serialization
from spillway.errors import CorruptSnapshot, CorruptTransactionLog
from spillway.pg.lsn import Lsn
from spillway.receiver.wal_writer import WalWriter
from spillway.service.settings import EngineSettings
from spillway.txlog import LogWriter, TransactionCursor
from spillway.txlog.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from harness.cluster import Cluster, Database
    from harness.oracle import LogicalSlot
    from harness.service import Service

SETTINGS = EngineSettings(checkpoint_interval_s=0.2, log_keep_bytes=0)
OPTIONS = {"skip-empty-xacts": "1"}
#: read from its beginning, from the middle, and up to its end; one on the other database
SLOTS = ("old", "mid", "new", "other")
#: of a log segment, so that there are several
LOG_SEGMENT_BYTES = 32 << 10


@dataclass
class Recorded:
    """A stopped service's directory, and PostgreSQL's slots beside ours."""

    directory: Path
    shop: Database
    other: Database
    oracles: dict[str, LogicalSlot]
    #: as of the end of the recording
    positions: dict[str, Lsn]

    @property
    def cluster(self) -> Cluster:
        return self.shop.cluster

    def database_root(self, data: Path) -> Path:
        return data / "sources/main/databases" / str(self.shop.oid)

    def insert(self) -> None:
        """Commit something in both databases."""
        self.shop.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1, 'later' FROM t")
        self.other.execute("INSERT INTO o VALUES (0)")


def record(cluster: Cluster, directory: Path) -> Recorded:
    shop, other = cluster.create_database("shop"), cluster.create_database("other")
    shop.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    other.execute("CREATE TABLE o (id int)")
    oracles: dict[str, LogicalSlot] = {}
    with service_in_process(directory, engine=SETTINGS) as service:
        service.create_source(shop.dsn)

        def begin(name: str, database: Database) -> None:
            service.create_slot(name, database.name, options=OPTIONS)
            oracles[name] = create_slot(database, f"o_{name}")

        def fill(first: int) -> None:
            for i in range(first, first + 60):
                shop.execute(
                    f"INSERT INTO t SELECT {i} * 100 + n, repeat('x', 40) FROM generate_series(1, "
                    "20) n"
                )

        begin("old", shop)
        begin("other", other)
        other.execute("INSERT INTO o VALUES (1), (2)")
        fill(1)
        begin("mid", shop)
        fill(100)
        begin("new", shop)
        cluster.query("SELECT pg_switch_wal()")
        shop.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 5")
        shop.execute("INSERT INTO t VALUES (999999, 'the newest', 1)")
        for name in SLOTS:
            service.wait_decoded(name, shop)
        service.get("new")
        oracles["new"].get(OPTIONS)
        positions = {name: Lsn.parse(service.slot(name)["confirmed_flush_lsn"]) for name in SLOTS}
    return Recorded(directory, shop, other, oracles, positions)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    from harness.cluster import Cluster

    with pytest.MonkeyPatch.context() as patch:
        defaults: dict[str, Any] | None = LogWriter.__init__.__kwdefaults__
        assert defaults is not None
        patch.setitem(defaults, "segment_bytes", LOG_SEGMENT_BYTES)
        cluster = Cluster(18, wal_segment_size_mb=1)
        cluster.start()
        try:
            yield record(cluster, tmp_path_factory.mktemp("recorded") / "data")
        finally:
            cluster.destroy()


# -- what a disk does -------------------------------------------------------------------------

Damage = "Callable[[list[Path]], None]"


def delete(paths: list[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def cut(paths: list[Path]) -> None:
    for path in paths:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])


def flip(share: float) -> Callable[[list[Path]], None]:
    def damage(paths: list[Path]) -> None:
        for path in paths:
            data = bytearray(path.read_bytes())
            data[min(len(data) - 1, int(len(data) * share))] ^= 0x55
            path.write_bytes(data)

    return damage


ALL_DAMAGE = {
    "deleted": delete,
    "cut": cut,
    "flipped_at_head": flip(0.0),
    "flipped_in_header": flip(0.0001),
    "flipped_in_the_middle": flip(0.5),
    "flipped_at_the_tail": flip(1.0),
}


def txlog(data: Path, recorded: Recorded) -> list[Path]:
    return sorted((recorded.database_root(data) / "txlog").glob("*.txlog"))


def wal(data: Path, _: Recorded) -> list[Path]:
    return sorted(p for p in (data / "sources/main/wal").iterdir() if len(p.name) == 24)


def without_bases(data: Path, recorded: Recorded, paths: list[Path]) -> list[Path]:
    """Remove what the middle of a log could be decoded again from, and return *paths*."""
    delete(sorted((recorded.database_root(data) / "snapshots").glob("*.base")))
    return paths


#: what is damaged, how, and who goes on although something was committed while the service was
#: stopped
VICTIMS: dict[str, tuple[Callable[[Path, Recorded], list[Path]], Iterable[str], set[str]]] = {
    # The other database's state is not touched, so "other" goes on throughout, unless all is lost.
    "instance": (lambda data, _: [data / "instance"], ("deleted", "cut"), {*SLOTS}),
    "wal_state": (
        lambda data, _: [data / "sources/main/wal/walstore.state"],
        ALL_DAMAGE,
        {*SLOTS},
    ),
    # The primary has all of them.
    "wal_first": (lambda data, r: wal(data, r)[:1], ("deleted", "cut"), {*SLOTS}),
    "wal_last": (
        lambda data, r: wal(data, r)[-1:],
        ("deleted", "cut", "flipped_at_head", "flipped_in_the_middle"),
        {*SLOTS},
    ),
    "wal_all": (wal, ("deleted", "cut"), {*SLOTS}),
    "wal_directory": (lambda data, _: [data / "sources/main/wal"], ("deleted",), {*SLOTS}),
    "database_json": (
        lambda data, r: [r.database_root(data) / "database.json"],
        ("deleted", "flipped_at_head", "flipped_in_the_middle"),
        {*SLOTS},
    ),
    "database_json_twice": (
        lambda data, r: [
            r.database_root(data) / "database.json",
            r.database_root(data) / "database.copy.json",
        ],
        ("deleted", "cut"),
        {*SLOTS},
    ),
    # One of the log: decoded again, the last one by going on before it, another beside what goes
    # on.
    "log_first": (lambda data, r: txlog(data, r)[:1], ALL_DAMAGE, {*SLOTS}),
    "log_middle": (
        lambda data, r: txlog(data, r)[1:3],
        ("deleted", "flipped_in_the_middle"),
        {*SLOTS},
    ),
    "log_last": (
        lambda data, r: txlog(data, r)[-1:],
        ("deleted", "cut", "flipped_in_the_middle"),
        {*SLOTS},
    ),
    # Without a state that is old enough: what is behind a segment is whole, and of the last one
    # what a snapshot covers.
    "log_first_without_bases": (
        lambda data, r: without_bases(data, r, txlog(data, r)[:1]),
        ("deleted", "flipped_in_the_middle", "cut"),
        {"mid", "new", "other"},
    ),
    "log_last_without_bases": (
        lambda data, r: without_bases(data, r, txlog(data, r)[-1:]),
        ("deleted", "flipped_in_the_middle"),
        {"new", "other"},
    ),
    "log_index": (
        lambda data, r: sorted((r.database_root(data) / "txlog").glob("*.idx")),
        ("deleted", "cut", "flipped_in_the_middle"),
        {*SLOTS},
    ),
    "log": (lambda data, r: [r.database_root(data) / "txlog"], ("deleted",), {*SLOTS}),
    "log_without_bases": (
        lambda data, r: without_bases(data, r, [r.database_root(data) / "txlog"]),
        ("deleted",),
        {"new", "other"},
    ),
    "snapshots": (
        lambda data, r: sorted((r.database_root(data) / "snapshots").glob("*.snap")),
        ("deleted", "flipped_in_the_middle"),
        {*SLOTS},
    ),
    # Without one there is nothing to begin from but the server's catalog as it is now.
    "snapshots_and_bases": (
        lambda data, r: sorted((r.database_root(data) / "snapshots").iterdir()),
        ("deleted", "flipped_in_the_middle", "cut"),
        {"other"},
    ),
    "database": (lambda data, r: [r.database_root(data)], ("deleted",), {"other"}),
    "databases": (lambda data, _: [data / "sources/main/databases"], ("deleted",), set()),
    "source": (lambda data, _: [data / "sources"], ("deleted",), set()),
}

CASES = [(victim, how) for victim, (_, hows, _) in VICTIMS.items() for how in hows]


def settled(service: Service, recorded: Recorded, *, restart: bool = False) -> dict[str, Any]:
    """Wait until every slot is decoded up to the server's present end, or invalidated."""
    lsn = Lsn.parse(recorded.cluster.value("SELECT pg_current_wal_flush_lsn()::text"))
    deadline = time.monotonic() + 60
    while True:
        slots = {name: service.slot(name) for name in SLOTS}
        (source,) = service.call("GET", "/sources")["sources"]
        if restart:
            for session in source["sessions"]:
                if session["error_code"] is not None:
                    path = f"/sources/main/databases/{session['database']}/restart"
                    service.http.post(f"/v1{path}")
        if source["state"] == "streaming" and all(
            slot["invalidation_reason"] is not None
            or (slot["decoded_lsn"] and Lsn.parse(slot["decoded_lsn"]) >= lsn)
            for slot in slots.values()
        ):
            return slots
        assert time.monotonic() < deadline, (source, slots)
        time.sleep(0.02)


def check(service: Service, recorded: Recorded, survivors: set[str], **more: bool) -> None:
    settled(service, recorded, **more)
    deadline = time.monotonic() + 30
    while True:
        # Damage within a segment before the last is met by who reads there first, and passes.
        answers = [service.http.get(f"/v1/slots/{name}/peek").json() for name in SLOTS]
        is_mended = all(a.get("code") != "corrupt_transaction_log" for a in answers)
        slots = settled(service, recorded, **more)
        alive = {n for n, slot in slots.items() if slot["invalidation_reason"] is None}
        if (is_mended and alive == survivors) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert is_mended
    assert alive == survivors
    for name, slot in slots.items():
        if slot["invalidation_reason"] is None:
            assert slot["wal_status"] == "reserved"
            theirs = [tuple(row) for row in recorded.oracles[name].peek(OPTIONS)]
            assert service.peek(name) == theirs, name
        else:
            assert slot["invalidation_reason"] == "wal_removed"
            assert slot["wal_status"] == "lost"
            problem = service.problem("GET", f"/slots/{name}/peek")
            assert problem["code"] == "slot_invalidated"
            missed = f"what was committed from {recorded.positions[name]} to "
            assert missed in problem["detail"]


def test_nothing_is_lost_where_nothing_was_committed(recorded: Recorded, tmp_path: Path) -> None:
    """Only who has everything already; before the other cases, which commit."""
    for number, (victims, survivors) in enumerate(
        (
            (lambda data: [recorded.database_root(data)], {"new", "other"}),
            (lambda data: [recorded.database_root(data) / "snapshots"], {*SLOTS}),
            (lambda data: [data / "sources"], {"new"}),
        )
    ):
        data = tmp_path / str(number)
        shutil.copytree(recorded.directory, data)
        delete(victims(data))
        with service_in_process(data, engine=SETTINGS) as service:
            check(service, recorded, survivors)


#: in a test of their own, which begins with what the error says
FOLLOWED = {("log_first", "flipped_in_the_middle"), ("snapshots", "flipped_in_the_middle")}


@pytest.mark.parametrize(
    ("victim", "how"),
    [
        # In the first tier each victim is lost once; the ways to damage one are its own tests' and
        # the long tier's.
        (pytest.param if "deleted" in case else deep)(*case, id="-".join(case))
        for case in CASES
        if case not in FOLLOWED
    ],
)
def test_what_a_disk_lost(recorded: Recorded, tmp_path: Path, victim: str, how: str) -> None:
    lost_and_found(recorded, tmp_path, victim, how)


def lost_and_found(recorded: Recorded, tmp_path: Path, victim: str, how: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(recorded.directory, data)
    find, _, survivors = VICTIMS[victim]
    paths = find(data, recorded)
    assert paths
    ALL_DAMAGE[how](paths)
    if victim in ("log_first", "log_middle"):
        # Found at the start: WAL stays until it is mended. Later it may have gone.
        for path in paths:
            path.with_suffix(".idx").unlink()
    recorded.insert()
    with service_in_process(data, engine=SETTINGS) as service:
        check(service, recorded, survivors)


def read_all(cursor: TransactionCursor) -> None:
    while (transaction := cursor.next()) is not None:
        deque(transaction.chunks(), maxlen=0)


@pytest.mark.follows_hint("corrupt_transaction_log")
def test_damage_of_the_log_that_is_told_is_healed_as_it_says(
    recorded: Recorded, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    shutil.copytree(recorded.database_root(recorded.directory) / "txlog", log)
    first = min(log.glob("*.txlog"))
    flip(0.5)([first])
    system_id = int(recorded.cluster.value("SELECT system_identifier FROM pg_control_system()"))
    database_oid = int(recorded.database_root(recorded.directory).name)
    with LogWriter(log, system_id=system_id, database_oid=database_oid) as opened:
        cursor = TransactionCursor(opened.reader, int(first.stem, 16))
        with pytest.raises(CorruptTransactionLog) as caught:
            read_all(cursor)
        cursor.close()
    hint = remedy(caught.value, "corrupt_transaction_log")
    assert "What WAL still covers is decoded again by itself" in hint
    lost_and_found(recorded, tmp_path / "healed", "log_first", "flipped_in_the_middle")


@pytest.mark.follows_hint("corrupt_snapshot")
def test_a_damaged_snapshot_is_done_without_as_it_says(recorded: Recorded, tmp_path: Path) -> None:
    path = max((recorded.database_root(recorded.directory) / "snapshots").glob("*.snap"))
    damaged = tmp_path / path.name
    shutil.copy(path, damaged)
    flip(0.5)([damaged])
    with pytest.raises(CorruptSnapshot) as caught:
        serialization.load(damaged.read_bytes())
    assert "by itself" in remedy(caught.value, "corrupt_snapshot")
    lost_and_found(recorded, tmp_path / "healed", "snapshots", "flipped_in_the_middle")


def test_damage_is_found_and_mended_before_a_reader_comes(
    recorded: Recorded, tmp_path: Path
) -> None:
    data, archives = tmp_path / "data", tmp_path / "archives"
    shutil.copytree(recorded.directory, data)
    (archives / "main").mkdir(parents=True)
    for path in wal(data, recorded):
        shutil.copy(path, archives / "main")
    victim = txlog(data, recorded)[1]
    flip(0.5)([victim])
    start_lsn = int(victim.stem, 16)
    # Its turn would come again in a day.
    (recorded.database_root(data) / "verified.json").unlink(missing_ok=True)

    def is_whole() -> bool:
        return Segment(victim, start_lsn).scan() == victim.stat().st_size

    assert not is_whole()
    with service_in_process(data, engine=replace(SETTINGS, wal_archives=archives)) as service:
        deadline = time.monotonic() + 60
        while not is_whole():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        recorded.insert()
        check(service, recorded, {*SLOTS})
        assert not (recorded.database_root(data) / "mending").exists()
    # What was verified need not be again, at the next start.
    assert f"{start_lsn:X}" in (recorded.database_root(data) / "verified.json").read_text()


@pytest.mark.parametrize("archived", [True, False])
def test_the_store_has_the_wal_no_more(recorded: Recorded, tmp_path: Path, archived: bool) -> None:
    """A hole is decoded again from the archive; without one it is given up, with what is before."""
    data, archives = tmp_path / "data", tmp_path / "archives"
    shutil.copytree(recorded.directory, data)
    (archives / "main").mkdir(parents=True)
    with WalWriter(data / "sources/main/wal") as store:
        for path in wal(data, recorded):
            shutil.copy(path, archives / "main")
        store.remove_before(store.flushed_lsn)
    delete(txlog(data, recorded)[:1])
    recorded.insert()
    settings = replace(SETTINGS, wal_archives=archives) if archived else SETTINGS
    with service_in_process(data, engine=settings) as service:
        check(service, recorded, {*SLOTS} if archived else {"mid", "new", "other"})


# -- what is there, and can't be read ---------------------------------------------------------

#: what may not be read, and whose trouble that is: a database's, the whole source's, or only its
#: who reads there
UNREADABLE: dict[str, tuple[Callable[[Path, Recorded], list[Path]], str]] = {
    "log_directory": (lambda data, r: [r.database_root(data) / "txlog"], "database"),
    "log_first": (lambda data, r: txlog(data, r)[:1], "reader"),
    "log_last": (lambda data, r: txlog(data, r)[-1:], "database"),
    "snapshot_directory": (lambda data, r: [r.database_root(data) / "snapshots"], "database"),
    "snapshots": (
        lambda data, r: sorted((r.database_root(data) / "snapshots").glob("*.snap")),
        "database",
    ),
    "database_json": (lambda data, r: [r.database_root(data) / "database.json"], "database"),
    "databases": (lambda data, _: [data / "sources/main/databases"], "source"),
    "wal_state": (lambda data, _: [data / "sources/main/wal/walstore.state"], "source"),
    "wal_segments": (wal, "source"),
}


#: one of each reach
_FEW: Final = {"log_first", "snapshot_directory", "wal_segments"}


@pytest.mark.parametrize(
    "victim", [victim if victim in _FEW else deep(victim) for victim in UNREADABLE]
)
def test_what_may_not_be_read_is_not_lost(recorded: Recorded, tmp_path: Path, victim: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(recorded.directory, data)
    find, whose = UNREADABLE[victim]
    paths = find(data, recorded)
    modes = {path: path.stat().st_mode for path in paths}
    inodes = {path: path.stat().st_ino for path in data.rglob("*") if is_state(path)}
    for path in paths:
        path.chmod(0)
    recorded.insert()
    with bound_by_permissions():
        running = service_in_process(data, engine=SETTINGS)
        service = running.__enter__()
    try:
        trouble = storage_trouble(service, whose, paths)
        # The other database goes on, unless it is the whole source.
        if whose != "source":
            theirs = [tuple(row) for row in recorded.oracles["other"].peek(OPTIONS)]
            service.wait_decoded("other", recorded.other)
            assert service.peek("other") == theirs
        for name in SLOTS:
            assert service.slot(name)["invalidation_reason"] is None
            # Not a restart either gives anything up, while it can't be read.
            service.http.post(f"/v1/sources/main/databases/{recorded.shop.name}/restart")
        assert storage_trouble(service, whose, paths)["hint"] == trouble["hint"]
        for path, mode in modes.items():
            path.chmod(mode)
        assert all(path.stat().st_ino == inodes[path] for path in paths if path in inodes)
        assert "right to read" in trouble["hint"]
        assert "spillway source restart SOURCE DATABASE" in trouble["hint"]
        service.http.post(f"/v1/sources/main/databases/{recorded.shop.name}/restart")
        check(service, recorded, {*SLOTS})
    finally:
        for path, mode in modes.items():
            if path.exists():
                path.chmod(mode)
        running.__exit__(None, None, None)


def is_state(path: Path) -> bool:
    return path.suffix in (".txlog", ".json", ".state") or len(path.name) == 24


def storage_trouble(service: Service, whose: str, paths: list[Path]) -> dict[str, Any]:
    """Wait until the trouble is shown as one of storage that names one of *paths*, and return what
    shows it.
    """
    deadline = time.monotonic() + 30
    while True:
        (source,) = service.call("GET", "/sources")["sources"]
        shown: list[dict[str, Any]] = [source, *source["sessions"]]
        if whose == "reader":
            problem = service.http.get("/v1/slots/old/peek").json()
            shown = [{**problem, "error_code": problem["code"], "error": problem["detail"]}]
        for one in shown:
            if one["error_code"] == "storage_error" and any(str(p) in one["error"] for p in paths):
                return one
        assert time.monotonic() < deadline, shown
        time.sleep(0.02)


def test_a_disk_that_errs(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log segment and a WAL segment, what the disk returns is EIO."""
    data = tmp_path / "data"
    shutil.copytree(recorded.directory, data)
    recorded.insert()
    bad = {str(txlog(data, recorded)[0])}
    pread = os.pread

    def failing(fd: int, size: int, offset: int) -> bytes:
        if str(Path(f"/proc/self/fd/{fd}").readlink()) in bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", failing)
    with service_in_process(data, engine=SETTINGS) as service:
        trouble = storage_trouble(service, "reader", [Path(*bad)])
        assert service.slot("old")["invalidation_reason"] is None
        bad.clear()
        check(service, recorded, {*SLOTS})
    bad.update(map(str, wal(data, recorded)))
    recorded.insert()
    with service_in_process(data, engine=SETTINGS) as service:
        storage_trouble(service, "source", [*map(Path, bad)])
        bad.clear()
        check(service, recorded, {*SLOTS}, restart=True)
    # Lost for good, as the hint says: its file moved away.
    first = txlog(data, recorded)[0]
    assert f"move {first} away" in trouble["hint"]
    first.rename(tmp_path / "away")
    with service_in_process(data, engine=SETTINGS) as service:
        check(service, recorded, {"mid", "new", "other"})
