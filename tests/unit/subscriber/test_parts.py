"""Back-off, logs, status files, a program's last words, and the lake's command line."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.commands import parse_command
from harness.remedies import remedy
from harness.subscription_stage import publication
from spillway.declarations.lake_options import LAKE_OPTIONS
from spillway.errors import InvalidRequest, LakeTableConflict, UnsupportedFeature
from spillway.pg.lsn import Lsn
from spillway.service.model import PublishedTable
from spillway.subscriber.backoff import GOOD_WHILE_S, MAX_S, Backoff
from spillway.subscriber.lake_target import LakeTarget
from spillway.subscriber.model import Failure, SubscriptionSpec, TableState
from spillway.subscriber.run_log import RunLog, error_in
from spillway.subscriber.run_processes import RunRecord, end_processes, identify, processes_of
from spillway.subscriber.run_start import LOCKED
from spillway.subscriber.run_status import RunStatus
from spillway.subscriber.table_rates import TableRates
from spillway.subscriber.targets import RunPlan, TableAction, kind_names, target_kind

LAKE = {"kind": "lake", "path": "/srv/lake"}


def test_waits_double_up_to_a_bound_and_begin_anew_after_a_good_while() -> None:
    backoff = Backoff(uniform=lambda low, high: high)
    assert [backoff.failed(0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, MAX_S, MAX_S]
    assert backoff.failed(GOOD_WHILE_S - 1) == MAX_S
    assert [backoff.failed(GOOD_WHILE_S), backoff.failed(0)] == [1, 2]


def test_jitter_is_over_the_second_half_of_a_wait() -> None:
    bounds: list[tuple[float, float]] = []
    backoff = Backoff(uniform=lambda low, high: bounds.append((low, high)) or low)
    backoff.failed(0)
    backoff.failed(0)
    assert bounds == [(0.5, 1.0), (1.0, 2.0)]


def test_a_log_is_bounded_under_the_hands_of_who_writes_it(tmp_path: Path) -> None:
    log = RunLog(tmp_path, bytes_max=1000)
    assert log.tail(10) == []
    descriptor = log.open()
    try:
        for number in range(100):
            os.write(descriptor, f"line {number} {'x' * 20}\n".encode())
            log.bound()
    finally:
        os.close(descriptor)
    log.note("ended\udcff")
    assert log.size() < 1100
    assert (tmp_path / "log.1").stat().st_size < 1100
    tail = log.tail(40)
    assert [line.split()[1] for line in tail[:-1]] == [str(n) for n in range(61, 100)]
    assert tail[-1].endswith("subscription: ended?")
    assert log.tail(0) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"run": "a", "begun": true, "changes": 1, "tables": [], "error": null}'],
)
def test_a_status_that_can_not_be_read_says_nothing(tmp_path: Path, text: str) -> None:
    assert RunStatus.load(tmp_path) is None
    (tmp_path / "status.json").write_text(text)
    assert RunStatus.load(tmp_path) is None


def test_a_status_is_read_as_the_lake_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spillway.lake.job.status_file import LakeStatusFile
    from spillway.lake.state.loads import LoadState, Stage, store_state

    monkeypatch.setenv("SPILLWAY_SUBSCRIPTION_RUN", "r1")
    lake = tmp_path / "lake"
    store_state(lake, "public.t", LoadState("public.t"))
    copying = LoadState(
        "public.u", Stage.COPYING, "0/1", blocks=10, range_blocks=2, chunk_ranges=2, chunks_done=1
    )
    store_state(lake, "public.u", copying)
    file = tmp_path / "status.json"
    status = LakeStatusFile(file).__enter__()
    assert RunStatus.load(tmp_path) == RunStatus(run="r1")
    status.loads(lake)
    assert RunStatus.load(tmp_path) is not None
    status.begun()
    told = RunStatus.load(tmp_path)
    assert told is not None
    assert told.begun
    assert told.is_copying
    assert told.tables == (
        TableState("public.t", "waiting", bytes_copied=0),
        TableState("public.u", "copying", bytes_copied=4 * 8192, bytes_total=10 * 8192),
    )
    status.__exit__(LakeTableConflict, LakeTableConflict("no", hint="mend"), None)
    told = RunStatus.load(tmp_path)
    assert told is not None
    assert told.error == Failure("lake_table_conflict", "no", "mend")
    # The next run goes on counting.
    value = json.loads(file.read_text())
    file.write_text(json.dumps({**value, "changes": 7}))
    monkeypatch.setenv("SPILLWAY_SUBSCRIPTION_RUN", "r2")
    LakeStatusFile(file).__enter__()
    again = RunStatus.load(tmp_path)
    assert again is not None
    assert (again.run, again.changes, len(again.tables), again.error) == ("r2", 7, 2, None)


def test_a_program_without_a_status_file_writes_none(tmp_path: Path) -> None:
    """It took /dev/null for one once, and as root it put a file in its place."""
    words = [sys.executable, "-m", "spillway.cli", "apply", "run", "--slot", "s"]
    words += ["--subscription", "s", "--identity", "1"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPILLWAY_")}
    said = []
    for more in ((), ("--status-file", str(tmp_path / "status.json"))):
        done = subprocess.run(
            [*words, *more],
            check=False,
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0
        said.append(done.stderr)
        assert list(tmp_path.iterdir()) == ([tmp_path / "status.json"] if more else [])
    assert said[0] == said[1]
    assert "status file" not in said[0]
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)  # noqa: PTH116 - a device


@pytest.mark.follows_hint("invalid_request")
def test_a_status_file_is_a_file(tmp_path: Path) -> None:
    from spillway.lake.job.status_file import LakeStatusFile

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidRequest, match=f"{pipe} is no file") as refused:
        LakeStatusFile(pipe)
    assert "Name a file" in remedy(refused.value, "invalid_request")
    LakeStatusFile(tmp_path / "status.json").__enter__()
    assert RunStatus.load(tmp_path) is not None


def test_a_load_that_failed_is_told_with_its_reason(tmp_path: Path) -> None:
    from spillway.lake.job.status_file import LakeStatusFile
    from spillway.lake.load.initial_load import LoadFailed, LoadProgress
    from spillway.lake.state.loads import LoadState, Stage, failed_loads, store_state

    def state() -> TableState:
        told = RunStatus.load(tmp_path)
        assert told is not None
        return told.tables[0]

    lake = tmp_path / "lake"
    status = LakeStatusFile(tmp_path / "status.json").__enter__()
    failed = LoadFailed("public.t", LakeTableConflict("it is odd", hint="Mend it."))
    assert str(failed) == "public.t is not loaded: it is odd. Mend it."
    status.heard(lake, failed)
    assert (state().state, state().reason) == ("waiting", str(failed))
    # It is tried again, and is in the way of nobody's stop between that.
    told = RunStatus.load(tmp_path)
    assert told is not None
    assert not told.has_copies_under_way
    status.heard(lake, LoadProgress("public.t", 5, 10, 1.0, done=True, lsn=Lsn(1)))
    assert (state().state, state().reason) == ("ready", None)
    # The next run finds why.
    copying = LoadState("public.t", Stage.COPYING, "0/1", blocks=1, reason=str(failed))
    store_state(lake, "public.t", copying)
    store_state(lake, "public.u", LoadState("public.u"))
    assert failed_loads(lake) == {"public.t": str(failed)}
    status.loads(lake)
    assert (state().state, state().reason) == ("waiting", str(failed))
    store_state(lake, "public.t", LoadState("public.t"))
    status.loads(lake)
    assert (state().state, state().reason) == ("waiting", None)


def test_last_words() -> None:
    assert error_in(["spillway: error: it"]) is None
    told = error_in(
        [
            "x",
            "spillway: error: old",
            "code: conflict",
            "y",
            "spillway: error: new",
            "hint: do",
            "code: lake_error",
            "",
        ]
    )
    assert told is not None
    assert (told.code, told.message, told.hint) == ("lake_error", "new", "do")
    without_hint = error_in(["spillway: error: new", "code: lake_error"])
    assert without_hint is not None
    assert without_hint.hint == ""


def test_a_program_is_the_only_one_and_is_found_again(tmp_path: Path) -> None:
    def start(token: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "spillway.subscriber.run_start",
            str(tmp_path),
            token,
            str(os.getpid()),
        ]
        environment = {**os.environ, "SPILLWAY_SUBSCRIPTION_RUN": token}
        return subprocess.Popen(
            [*command, "sh", "-c", "echo up; sleep 600"],
            env=environment, start_new_session=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    first = start("t1")
    assert first.stdout is not None
    assert first.stdout.readline() == b"up\n"
    record = RunRecord.load(tmp_path)
    assert record is not None
    assert (record.token, record.pid) == ("t1", first.pid)
    assert record.is_alive()
    with start("t2") as second:
        assert second.wait(60) == LOCKED
    assert RunRecord.load(tmp_path) == record
    # Of a session with that number, but not of that run; and a pid that is somebody else's by now.
    other = RunRecord("other", record.pid, record.start_time + 1, record.boot_id)
    assert processes_of(other) == []
    assert processes_of(RunRecord("t1", record.pid, record.start_time, "another boot")) == []
    assert first.pid in processes_of(record)
    # A reaper, as the service is one: what is a zombie has ended.
    assert end_processes(record, 30)
    assert first.wait(60) < 0
    first.stdout.close()
    assert not record.is_alive()


def test_a_program_whose_service_died_before_it_began_does_not_begin(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "spillway.subscriber.run_start",
        str(tmp_path),
        "t",
        "1",
        "true",
    ]
    assert subprocess.run(command, check=False).returncode == 1
    assert not (tmp_path / "run.json").exists()


def test_identity_of_nobody() -> None:
    assert identify(2**22 + 1).start_time == 0


def test_kinds() -> None:
    assert {"lake", "postgres"} <= {*kind_names()}
    for name in ("", None, 7, "no"):
        with pytest.raises(InvalidRequest) as raised:
            target_kind(name)
        assert "lake" in raised.value.hint


def plan(**changed: Any) -> RunPlan:
    values: dict[str, Any] = {
        "subscription": "a",
        "slot": "s",
        "source": "shop",
        "database": "shop",
        "target": LakeTarget().check(LAKE),
        "tables": None,
        "publications": None,
        "copy_data": True,
        "copies": True,
        "has_begun": False,
        "refreshes": False,
        "forgets": frozenset(),
        "origin": "any",
        "streaming": "off",
        "two_phase": False,
        "created_us": 0,
        "skip_lsn": None,
        "grpc": "127.0.0.1:1",
        "status_file": Path("/d/status.json"),
        "dsn": "host=db password=s3cret",
    }
    return RunPlan(**values | changed)


JOB = {
    "on_schema_change": "pause",
    "interval_s": 2.5,
    "max_bytes_per_batch": 1000,
    "maintenance_interval": "2h",
    "retention": "7d",
    "history_retention": "90d",
    "driver_memory": "512m",
    "master": "local[2]",
    "metrics_port": 0,
    "column_names": "safe",
    "conf": {"spark.sql.shuffle.partitions": "8", "spark.local.dir": "/a=b,c"},
    "partition_root": ["a.b", "all"],
    "soft_deletes": ["a.b"],
    "merge_interval": {"all": "1m", "a.b": "0s"},
    "mask": {"a.b": ["hash(x)", "constant(y z:a=b c)"], "a.c": []},
}
DELTA = {
    "partition_history": "day",
    "partition_by": {"a.b": ["day(at)", "region"], "a.c": []},
    "cluster_by": {"a.b": ["x", "y z"]},
    "register_in": "thrift://metastore:9083",
    "register_prefix": "lake_",
}
#: Options of both.
VERSIONED = {"merge": "position"}
ICEBERG = {
    "iceberg_catalog": "prod",
    "iceberg_prefix": "shop_",
    "iceberg_location": "catalog",
}


def test_every_option_of_a_lake_is_one_of_its_job() -> None:
    assert {*JOB, *DELTA, *VERSIONED, *ICEBERG} == {option.name for option in LAKE_OPTIONS}
    for format_, more in (
        ("delta", DELTA | VERSIONED),
        ("iceberg", ICEBERG | VERSIONED),
        ("parquet", {}),
    ):
        target = LakeTarget().check({**LAKE, "format": format_, **JOB, **more})
        program = LakeTarget().program(
            plan(target=target, tables=("a.b", "a.--c"), skip_lsn=Lsn.parse("0/10"))
        )
        parsed = parse_command(list(program.arguments[3:]))
        assert parsed["table_format"].value == format_
        for name, value in more.items():
            told = parsed[name]
            if name in ("partition_by", "cluster_by"):
                told = {t: c.split(",") if c else [] for t, c in (o.split("=") for o in told)}
            assert told == value, name
        assert "--skip-to=0/10" in program.arguments
        assert "--table=a.--c" in program.arguments
        assert "s3cret" not in " ".join(program.arguments) + repr(program) + repr(plan())
        assert program.environment == {"SPILLWAY_LAKE_SOURCE_DSN": "host=db password=s3cret"}
        check = LakeTarget().check_program(plan(target=target))
        looked_at = parse_command(list(check.arguments[3:]))
        assert looked_at["table_format"].value == format_
        assert {name: looked_at[name] for name in JOB} == {name: parsed[name] for name in JOB}
        assert check.environment == {}
    bare = LakeTarget().program(plan(copy_data=False))
    assert "--initial-load" not in bare.arguments
    # Tables may be asked for anew.
    assert bare.environment == {"SPILLWAY_LAKE_SOURCE_DSN": "host=db password=s3cret"}
    target = LakeTarget().check({**LAKE, **JOB})
    compares = LakeTarget().verify_program(plan(target=target), ("a.b",), Path("/d/outcome.json"))
    parsed = parse_command(list(compares.arguments[3:]))
    assert (parsed["outcome"], parsed["table"]) == (Path("/d/outcome.json"), ["a.b"])
    assert (parsed["master"], parsed["driver_memory"]) == ("local[2]", "512m")
    assert compares.environment == bare.environment
    anew = LakeTarget().table_program(plan(), "a.b", TableAction.RESYNC)
    assert anew.arguments[3:] == ("lake", "resync", f"--path={LAKE['path']}", "--table=a.b")
    back = LakeTarget().table_program(plan(), "a.b", TableAction.CANCEL_RESYNC)
    assert back.arguments[3:] == ("lake", "cancel-resync", *anew.arguments[5:])


def test_a_partitioned_table_that_is_one_in_the_lake() -> None:
    def table_of(*roots: str) -> str:
        target = LakeTarget().check({**LAKE, "partition_root": list(roots)})
        return LakeTarget().table_of(target, "a.leaf", ("a.sub", "a.root"))

    assert table_of("a.root", "a.sub") == table_of("all") == "a.root"
    assert table_of("a.sub") == "a.sub"
    assert table_of("a.other") == LakeTarget().table_of({}, "a.leaf", ("a.root",)) == "a.leaf"


@pytest.mark.parametrize(
    "layout",
    [
        {"partition_history": "month"},
        {"partition_history": "none"},
        {"partition_history": "hour"},
        {"partition_by": {"a.b": ["day(at)", "region", "été 2"]}},
        {"partition_by": {"a.b": []}},
        {"partition_by": {"b": ["x"]}},
        {"partition_by": {"a.b": ["week(at)"]}},
        {"partition_by": {"a.b": ["day(at"]}},
        {"partition_by": {"a.b": ["at", "day(at)"]}},
        {"cluster_by": {"a.b": ["x", "f(y)"]}},
        {"cluster_by": {"a b.c d": ["x"]}},
        {"cluster_by": {"b": ["x"]}},
    ],
)
def test_a_layout_is_refused_where_the_job_would_refuse_it(layout: dict[str, Any]) -> None:
    from spillway.lake.tables import layout as of_job

    options = {
        name: [f"{table}={','.join(columns)}" for table, columns in layout.get(name, {}).items()]
        for name in ("partition_by", "cluster_by")
    }
    try:
        of_job.parse(layout.get("partition_history"), **options)
    except InvalidRequest:
        with pytest.raises(InvalidRequest) as refused:
            LakeTarget().check({**LAKE, **layout})
        assert refused.value.details["field"] == f"target.{next(iter(layout))}"
    else:
        LakeTarget().check({**LAKE, **layout})


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"path": "lake"}, "path"),
        ({"path": ""}, "path"),
        ({"path": "/a\nb"}, "path"),
        ({"path": None}, "path"),
        ({"path": "/a?b", "format": "iceberg"}, "path"),
        ({"format": "orc"}, "format"),
        ({"retention": "7"}, "retention"),
        ({"interval_s": 0}, "interval_s"),
        ({"interval_s": True}, "interval_s"),
        ({"driver_memory": "lots"}, "driver_memory"),
        ({"column_names": "odd"}, "column_names"),
        ({"merge_interval": ["a.b=1m"]}, "merge_interval"),
        ({"merge_interval": {"b": "1m"}}, "merge_interval"),
        ({"merge_interval": {"a.b": "1 m"}}, "merge_interval"),
        ({"merge_interval": {"a.b": 60}}, "merge_interval"),
        ({"partition_root": "a.b"}, "partition_root"),
        ({"partition_root": ["b"]}, "partition_root"),
        ({"partition_root": [7]}, "partition_root"),
        ({"mask": {"a.b": ["email"]}}, "mask"),
        ({"mask": {"a.b": ["hash()"]}}, "mask"),
        ({"mask": {"a.b": ["hash(x)", "out(x)"]}}, "mask"),
        ({"mask": {"a.b": ["constant(x)"]}}, "mask"),
        ({"mask": {"b": ["hash(x)"]}}, "mask"),
        ({"conf": {"spark.sql.ansi.enabled": "false"}}, "conf"),
        ({"conf": {"spark.hadoop.fs.s3a.secret.key": "x"}}, "conf"),
        ({"conf": {"spark.executor.cores": 2}}, "conf"),
        ({"conf": ["spark.executor.cores=2"]}, "conf"),
        ({"conf": {"executor.cores": "2"}}, "conf"),
        ({"on_schema_change": "no"}, "on_schema_change"),
        ({"jars": "/x"}, "jars"),
        ({"iceberg_catalog": "", "format": "iceberg"}, "iceberg_catalog"),
        # What the job's options would take for something else.
        ({"cluster_by": {"a.b": ["x,y"]}}, "cluster_by"),
        ({"cluster_by": {"a.b": [" x"]}}, "cluster_by"),
        ({"cluster_by": {"a.b": [""]}}, "cluster_by"),
        ({"cluster_by": {"a.b": "x"}}, "cluster_by"),
        ({"cluster_by": {"a.b": [7]}}, "cluster_by"),
        ({"cluster_by": {"a.b=c": ["x"]}}, "cluster_by"),
        ({"cluster_by": {"a.b\n": ["x"]}}, "cluster_by"),
        ({"cluster_by": ["a.b"]}, "cluster_by"),
        ({"partition_by": {"a.b": ["day( at )"]}}, "partition_by"),
        ({"partition_by": {"a.b": ["x" * 5000]}}, "partition_by"),
    ],
)
def test_refused_lakes(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        LakeTarget().check({**LAKE, **changed})
    assert raised.value.details["field"] == f"target.{field}"
    assert raised.value.hint


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        *(({"format": "iceberg", name: value}, name) for name, value in DELTA.items()),
        *(
            ({"format": "parquet", name: value}, name)
            for name, value in (DELTA | VERSIONED).items()
        ),
        *(({name: value}, name) for name, value in ICEBERG.items()),
        ({"format": "parquet", "path": "s3://b/p"}, "format"),
    ],
)
def test_what_a_format_has_not_is_refused(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(UnsupportedFeature) as raised:
        LakeTarget().check({**LAKE, **changed})
    assert raised.value.details["field"] == f"target.{field}"


def test_iceberg_in_a_bucket_needs_a_catalog() -> None:
    lake = {**LAKE, "format": "iceberg", "path": "s3://b/p"}
    with pytest.raises(InvalidRequest, match="needs a catalog") as raised:
        LakeTarget().check(lake)
    assert raised.value.details["field"] == "target.iceberg_catalog"
    assert LakeTarget().check({**lake, "iceberg_catalog": "shared"})["path"] == "s3://b/p"


def test_how_a_lake_was_made_is_fixed() -> None:
    fixed = LakeTarget().fixed
    assert fixed(LAKE) == fixed({**LAKE, "partition_history": "none", "retention": "7d"})
    assert fixed(LAKE) == fixed({**LAKE, "cluster_by": {"a.b": ["x"]}})
    for name in ("partition_history", "iceberg_catalog", "iceberg_prefix"):
        assert fixed(LAKE) != fixed({**LAKE, name: "other"})


@pytest.mark.parametrize("field", ["streaming", "two_phase", "origin"])
def test_what_a_lake_can_not_do_is_refused(field: str) -> None:
    values: dict[str, Any] = {"streaming": "on", "two_phase": True, "origin": "none"}
    spec = SubscriptionSpec("a", "shop", "shop", LAKE, **{field: values[field]})
    with pytest.raises(UnsupportedFeature) as raised:
        LakeTarget().check_subscription(spec, only_local=False)
    assert raised.value.details["field"] == field
    if field == "origin":
        LakeTarget().check_subscription(spec, only_local=True)


def test_publications_of_less_than_whole_tables_are_refused() -> None:
    LakeTarget().check_publication(publication("p", "a.b"))
    listed = PublishedTable("a", "b", ("id",), has_row_filter=False, row_filter=None)
    filtered = PublishedTable("a", "b", None, has_row_filter=True, row_filter=None)
    for refused, what in (
        (publication("p", "a.b", delete=False), "leaves out delete"),
        (publication("p", tables=(listed,)), "a column list on a.b"),
        (publication("p", tables=(filtered,)), "a row filter on a.b"),
    ):
        with pytest.raises(UnsupportedFeature, match=what):
            LakeTarget().check_publication(refused)


def test_rates_are_of_the_last_seconds_or_unknown() -> None:
    rates = TableRates()

    def at(now: float, changes: int, copied: int | None = None) -> TableState:
        state = "copying" if copied is not None else "ready"
        told = TableState("public.t", state, changes, copied, 1000)
        (found,) = rates.of(now, [told])
        return found

    assert at(100, 50).changes_per_second is None
    assert at(100.5, 60).changes_per_second is None
    assert at(102, 70).changes_per_second == 10
    for now in range(103, 140):
        found = at(now, 70 + 5 * (now - 102))
    assert found.changes_per_second == 5
    assert found.seconds_left is None
    # It stands still.
    for now in range(140, 160):
        found = at(now, 300)
    assert found.changes_per_second == 0
    # A count that went back is of another beginning.
    assert at(160, 1).changes_per_second is None
    rates.forget()
    assert at(161, 2).changes_per_second is None
    at(200, 2, 100)
    copying = at(204, 2, 500)
    assert (copying.bytes_per_second, copying.seconds_left) == (
        pytest.approx(500 / 43),
        pytest.approx(43),
    )
