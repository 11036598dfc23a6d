"""Each command with values that can't be: what is said names the value and what to write, in words,
and nothing is a traceback.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import typer

from spillway.cli import main
from spillway.cli.program import app
from spillway.cli.subscription import JOB_OPTIONS
from spillway.slot_manager.subscriptions.models import LakeTarget

if TYPE_CHECKING:
    import pytest

    from harness.fake_service import FakeService

NEW = "subscription create a --source shop --database shop --lake /srv/l --disabled"
FIND = "changes --source shop --database shop"
#: (command line, exit code, what is said)
CASES = (
    (f"{NEW} -j driver_memory=4", 1, "driver_memory is '4', and must be a size such as 2g"),
    (f"{NEW} -j retention=7", 1, "retention is '7', and must be a time such as 7d"),
    (f"{NEW} -j driver_memory", 1, "--job-option 'driver_memory' is not NAME=VALUE"),
    (f"{NEW} -j nonsense=4", 1, "target.nonsense is not known here"),
    (f"{NEW} -j interval_s=x", 1, "interval_s is 'x', and must be a number"),
    (f"{NEW} -j max_bytes_per_batch=1.5", 1, "max_bytes_per_batch must be a whole number"),
    (f"{NEW} -j on_schema_change=x", 1, "on_schema_change must be evolve, pause or quarantine"),
    (f"{NEW} -j path=/a", 1, "Give it by --path"),
    (f"{NEW} -j master=a -j master=b", 1, "--job-option master is given twice"),
    (f"{NEW} --format x", 2, "--format: 'x' is not one of 'delta', 'iceberg', 'parquet'"),
    (f"{NEW} --origin x", 2, "--origin: 'x' is not one of 'any', 'none'"),
    (f"{NEW} --partition-history week", 2, "--partition-history: 'week' is not one of"),
    (f"{NEW} --partition-by x", 1, "--partition-by 'x' does not say of which table"),
    ("subscription show b", 1, "`spillway subscription list` lists what exists"),
    ("subscription skip s x", 1, "invalid LSN: 'x'"),
    ("subscription log a -n x", 2, "--lines is 'x', and must be a whole number"),
    ("subscription log a -n -1", 2, "--lines is '-1', and must be 0 or more"),
    ("subscription log a -n 100000", 1, "lines must be 10000 or less"),
    ("subscription conflicts a --limit x", 2, "--limit is 'x', and must be a whole number"),
    ("subscription wait a --lsn x", 1, "invalid LSN: 'x'"),
    ("subscription wait a --timeout x", 2, "--timeout is 'x', and must be a number"),
    ("subscription wait a", 1, "SPILLWAY_APPLY_SOURCE_DSN is not set"),
    ("slot create x --source shop --database shop --start-lsn x", 1, "invalid LSN: 'x'"),
    ("slot create x --source nope --database shop", 1, 'source "nope" does not exist'),
    ("slot create x --source shop --database shop --plugin no", 1, "code: unknown_plugin"),
    ("slot create", 2, "Missing argument 'SLOT'"),
    ("slot create '' --source shop --database shop", 1, "code: invalid_slot_name"),
    ("slot show ''", 1, 'nothing can have the name ""'),
    ("slot show ..", 1, 'nothing can have the name ".."'),
    ("slot show a/b", 1, 'nothing can have the name "a/b"'),
    ("slot show none", 1, "code: unknown_slot"),
    ("slot peek s1 --upto-lsn x", 1, "invalid LSN: 'x'"),
    ("slot peek s1 --upto-nchanges x", 2, "--upto-nchanges is 'x', and must be a whole number"),
    ("slot peek s1 --upto-nchanges 99999999999", 1, "upto_nchanges must be 2147483647 or less"),
    ("slot get s1 --upto-nchanges 99999999999", 1, "upto_nchanges must be 2147483647 or less"),
    ("slot peek s1 --nonsense", 2, "No such option: --nonsense"),
    ("slot nonsense", 2, "No such command 'nonsense'"),
    ("slot alter s1", 1, "Give all of them with --option, or --no-options"),
    ("slot rewind s1 zz", 1, "invalid LSN: 'zz'"),
    ("slot rewind s1", 2, "Missing argument"),
    ("slot advance s1 1/", 1, "invalid LSN: '1/'"),
    (f"source add {'x' * 80} host=a", 1, "name may have 63 characters at most"),
    (f"source add y {'h' * 9000}", 1, "dsn may have 8192 characters at most"),
    ("source add y host=a --origin x", 2, "--origin: 'x' is not one of"),
    ("source tables shop --database nope", 1, "code: not_ready"),
    ("source metrics shop --range 1y", 2, "'1y' is not a time"),
    ("source metrics shop --range 31d", 1, "code: invalid_request"),
    ("slot metrics s1 --step 5", 2, "'5' is not a time"),
    ("subscription metrics a --range week", 2, "'week' is not a time"),
    (f"{FIND} --since tomorow", 1, "--since is 'tomorow', and no time"),
    (f"{FIND} --until 2026-13-01", 1, "--until is '2026-13-01', and no time"),
    (f"{FIND} --xid x", 2, "--xid is 'x', and must be a whole number"),
    (f"{FIND} --xid 99999999999", 1, "xid must be less than 4294967296"),
    (f"{FIND} --limit 0", 2, "--limit is '0', and must be 1 or more"),
    (f"{FIND} --op x", 2, "--op: 'x' is not one of"),
    (f"{FIND} --output x", 2, "--output: 'x' is not one of"),
    (f"{FIND} --from-lsn x", 1, "invalid LSN: 'x'"),
    (f"{FIND} --upto-lsn x", 1, "invalid LSN: 'x'"),
    (f"{FIND} --table t --key id", 1, "key 'id' is not COLUMN=VALUE"),
    (f"{FIND} --table t --key id=1 --key id=2", 1, 'column "id" is given twice as key'),
    (f"{FIND} --key id=1", 1, "a key is given, and no table that it belongs to"),
    ("changes --source nope --database shop", 1, 'source "nope" does not exist'),
    ("source drop nope", 1, "code: unknown_source"),
    ("recv -S none", 1, "code: unknown_slot"),
    ("recv -S s1 -s x", 2, "--status-interval is 'x', and must be a number"),
    ("recv -S s1 -n --grpc nonsense", 1, "'nonsense' is no address of gRPC's"),
    ("recv -S s1 -n --grpc http://127.0.0.1:1", 1, "http:// is REST's (SPILLWAY_URL)"),
    ("recv -S s1 -n --grpc https://127.0.0.1:1/v1", 1, "is no address of gRPC's"),
    ("slot show \udcff", 1, "is not text in UTF-8"),
    ("source add y password=secret\udcff", 1, "is not text in UTF-8"),
    ("event list --limit x", 2, "--limit is 'x', and must be a whole number"),
    ("event list --since yesterdayish", 1, "--since is 'yesterdayish', and no time"),
    ("ddl --since 13h30", 1, "--since is '13h30', and no time"),
    ("alert list --state x", 1, "state is 'x'"),
    ("alert messages --state x", 1, "There are waiting, sent, failed"),
    ("alert rule set r --code x", 1, "codes has 'x', which is no finding's"),
    ("alert rule set r --limit lag_s", 1, "--limit 'lag_s' is not NAME=NUMBER"),
    ("alert rule set r --limit lag=1", 1, "limits has no 'lag'"),
    ("alert rule set r --quiet 22", 1, "--quiet '22' is not FROM-TO"),
    ("alert rule set r --hold x", 2, "--hold is 'x', and must be a whole number"),
    ("alert rule set r --channel none", 1, 'alert channel "none" does not exist'),
    ("alert rule set R", 1, "an alert rule can't have the name 'R'"),
    ("alert rule show none", 1, "`spillway alert rule set none` makes it"),
    ("alert rule drop none", 1, "code: unknown_alert_rule"),
    ("changes --source shopp --database shop", 1, "Did you mean shop?"),
    ("alert channel set c --kind x", 1, "kind is 'x'"),
    ("alert channel set c --kind email --host h", 1, "to has no addresses"),
    ("alert channel set c --kind webhook --url x", 1, "url is no address of HTTP"),
    ("alert channel set c", 2, "Missing option '--kind'"),
    ("alert channel test none", 1, "code: unknown_alert_channel"),
    ("alert channel show none", 1, "code: unknown_alert_channel"),
    ("alert channel drop none", 1, "code: unknown_alert_channel"),
    ("user create u", 2, "Missing option '--database'"),
    ("slot list --state activ", 2, "--state: 'activ' is not one of 'active', 'idle'"),
    ("slot list --state activ", 2, "Did you mean active? `spillway slot list --help`"),
    ("slot list --sort lag_byts", 1, "Did you mean lag_bytes"),
    ("slot list --sort options", 1, "names no column to sort by"),
    ("slot list --json -o table", 1, "Give one of the two"),
    ("slot list -w --interval x", 2, "--interval is 'x', and must be a number"),
    ("slot show s2", 1, "Did you mean s1? `spillway slot list` lists what exists"),
    ("source show shpo", 1, "Did you mean shop?"),
    ("slot create x --source shpo --database shop", 1, "Did you mean shop?"),
    ("source list --state up", 2, "--state: 'up' is not one of"),
    ("source add y host=a --wait --timeout x", 2, "--timeout is 'x', and must be a number"),
    ("subscription list --state failing", 2, "Did you mean failed?"),
    ("subscription tables a --state x", 2, "--state: 'x' is not one of"),
    ("slt list", 2, "Did you mean 'slot'"),
    ("slot lst", 2, "Did you mean 'list'"),
    ("slot list --stat x", 2, "--state"),
    ("context add a", 2, "Missing option '--url'"),
    ("context add a/b --url http://127.0.0.1", 1, "can't be a context's name"),
    ("context add a --url nonsense", 1, "'nonsense' is not the address of a service"),
    ("context add a --url http://u:p@127.0.0.1", 1, "an address has no user and no password"),
    ("context add a --url http://127.0.0.1:x", 1, "is not the address of a service"),
    ("context add a --url http://127.0.0.1 --grpc x", 1, "is no address of gRPC's"),
    ("context add a --url http://h --token-env A --token-file b", 1, "given more than once"),
    ("context add a --url http://h --tls-ca a --tls-client-key b", 1, "needs its key"),
    ("context use", 1, "Give its name, or --none"),
    ("context use none", 1, "`spillway context list` lists what exists"),
    ("context remove none", 1, "code: not_found"),
    ("context show", 1, "no context is in use"),
    ("--context none slot list", 1, 'context "none" does not exist'),
    ("status --nonsense", 2, "No such option: --nonsense"),
    ("decode --wal-dir /nonexistent", 1, "Give one of --state, --data-directory and --dsn"),
    ("decode --wal-dir /nonexistent --dsn host=a", 1, "/nonexistent is no directory"),
    ("certify --dsn nonsense", 1, "Write postgresql://user:password@host:port/database"),
    ("serve --http-port 99999", 2, "--http-port is '99999', and must be 65535 or less"),
    ("serve --metadata-url nonsense", 1, "the metadata URL can't be parsed"),
    ("lake run --lake /srv/l --slot s --retention x", 2, "'x' is not a time such as"),
    ("lake run --lake /srv/l --slot s --format x", 2, "'x' is not one of"),
    ("lake run", 2, "Missing option '--slot'"),
    ("lake nonsense", 2, "No such command 'nonsense'"),
)
#: What a parser, a library or REST would say, and no person.
RAW = re.compile(
    r"Traceback|Input should|Extra inputs|Value error|unable to "
    r"parse|pydantic|httpx|Errno|[\u2500-\u257f]|body\.|query\.|\b(?:GET|POST|PATCH|DELETE) "
    r"/|/docs\b|secret"
)


def test_bad_values(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for line, code, says in CASES:
        found = main(shlex.split(line))
        captured = capsys.readouterr()
        if (found, captured.out) != (code, "") or says not in captured.err:
            wrong.append(f"{line}: {found}: {captured.out}{captured.err}")
        if raw := RAW.search(captured.err):
            wrong.append(f"{line}: raw: {raw[0]!r}: {captured.err}")
        if not captured.err.startswith("spillway: error: "):
            wrong.append(f"{line}: {captured.err}")
    assert not wrong, "\n".join(wrong)


def test_each_command_that_takes_something_is_among_the_cases() -> None:
    """A new command needs a case, too: what it says of a bad value is seen then."""
    tried = {tuple(shlex.split(line)[:2]) for line, _, _ in CASES}
    simple = {
        # They take nothing but a name, or what others among the cases take.
        "alter", "copy", "disable", "drop", "enable", "end-session", "get", "list", "publications",
        "check", "pause-table", "repair", "resume-table", "resync-table", "verify",
        "cancel-resync",
        "refresh", "restart", "sequences", "show", "snapshot", "stats", "tables",
    }  # fmt: skip
    program = typer.main.get_group(app)
    for name, command in program.commands.items():
        for inner in getattr(command, "commands", {}):
            assert inner in simple or (name, inner) in tried, f"{name} {inner}"


def test_job_options_are_the_services() -> None:
    own = {"kind", "format", "path", "partition_history", "partition_by", "cluster_by"}
    own |= {"iceberg_catalog", "iceberg_prefix", "conf", "partition_root", "mask", "soft_deletes"}
    own |= {"merge_interval"}
    own |= {"register_in"}
    assert set(JOB_OPTIONS) == set(LakeTarget.model_fields) - own


def test_a_slow_service_is_told_apart_from_one_that_is_away(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import httpx

    def time_out(*_: object, **__: object) -> None:
        raise httpx.ReadTimeout("timed out")

    monkeypatch.setattr(httpx.Client, "request", time_out)
    assert main(["slot", "drop", "s1"]) == 1
    said = capsys.readouterr().err
    assert "has not answered" in said
    assert "can't be reached" not in said
