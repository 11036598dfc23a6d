"""A target kind whose program costs a tenth of a second: it tells that it has begun, and waits; or
fails as it is told.

``mode`` of the target: run, fail (with an error in its status file), print (with one on stderr
only), silent (exit code 3), stubborn (SIGTERM is ignored), copying (its tables are copied at
SIGUSR1), parent (with a child that outlives it).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from spillway.errors import InvalidRequest, UnsupportedFeature
from spillway.subscriber.targets import Program, RunPlan, TableAction, TargetKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spillway.service.model import PublicationInfo
    from spillway.subscriber.model import SubscriptionSpec

MODES = ("run", "fail", "print", "silent", "stubborn", "copying", "parent")


class FakeTarget(TargetKind):
    """Registered by tests as ``fake``."""

    plugin: ClassVar[str] = "arrow"

    def check(self, target: Mapping[str, Any]) -> dict[str, Any]:
        if target.get("mode", "run") not in MODES:
            raise InvalidRequest(f"mode {target['mode']!r}", hint="One of MODES.")
        return {"mode": "run", "path": "/nowhere", **target}

    def check_subscription(self, spec: SubscriptionSpec, *, only_local: bool) -> None:
        if spec.two_phase:
            raise UnsupportedFeature("two_phase", hint="Leave it out.")

    def check_publication(self, publication: PublicationInfo) -> None:
        pass

    def place(self, target: Mapping[str, Any]) -> object:
        return target["path"]

    def fixed(self, target: Mapping[str, Any]) -> Mapping[str, object]:
        return {"made_by": target.get("made_by")}

    def table_program(self, plan: RunPlan, table: str, action: TableAction) -> Program | None:
        if plan.target["mode"] == "copying":
            return None
        said = f"open({str(plan.status_file) + '.asked'!r}, 'a').write({f'{action} {table};'!r})"
        return Program((sys.executable, "-S", "-c", said))

    def verify_program(self, plan: RunPlan, tables: Sequence[str], outcome: Path) -> Program | None:
        if plan.target["mode"] == "copying":
            return None
        found = [
            {
                "table": table, "equal": False, "source_rows": 2, "target_rows": 1,
                "differences": 1, "more": False, "skipped": "",
            }
            for table in tables
        ]  # fmt: skip
        code = (
            "import json, os; json.dump({'run': os.environ['SPILLWAY_SUBSCRIPTION_RUN'], "
            f"'lsn': '0/10', 'ended_at': '2026-11-26T00:00:00+00:00', 'tables': {found!r}}}, "
            f"open({str(outcome)!r}, 'w'))"
        )
        return Program((sys.executable, "-S", "-c", code))

    def program(self, plan: RunPlan) -> Program:
        return Program(
            (
                sys.executable,
                "-S",
                str(Path(__file__).with_name("fake_target_program.py")),
                plan.target["mode"],
                str(plan.status_file),
                json.dumps(plan.tables),
                str(plan.skip_lsn),
                str(plan.copy_data),
            ),
            {"FAKE_DSN": plan.dsn},
        )
