"""What a batch takes of a table where the plugin tells of a value that it has no form for, and what
a load does with a table that holds one; without Spark.

The batches' frames are stand-ins: what is asked of them is remembered by nobody.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from harness.arrow_slot import ArrowSlot, DirectoryClient, Table, insert, refusing
from spillway.consumer.slot import SlotPosition
from spillway.consumer.snapshots import SourceTable
from spillway.errors import LakeError, ValueNotRepresentable
from spillway.lake.batch import plan as planning
from spillway.lake.batch.schema_policy import OnSchemaChange
from spillway.lake.load.initial_load import InitialLoad, LoadFailed
from spillway.lake.shape.kinds import CURRENT, HISTORY
from spillway.lake.shape.payload import ENVELOPE, parse_message
from spillway.lake.source.data_source import envelopes
from spillway.lake.state import quarantine
from spillway.lake.state.loads import LoadState, Stage, failed_loads, load_state, store_state
from spillway.lake.state.quarantine import QUARANTINE
from spillway.lake.tables.contract import Batch
from spillway.plugins.refused_values import refused_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

BEGIN = 0x1000000
ODD = Table("odd", {"id": pa.int64(), "at": pa.timestamp("us")})
FINE = Table("fine", {"id": pa.int64()})


class Place(dict[str, int]):
    """A Row of two numbers: by name, and in order."""

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        return iter(self.values())


class Frame:
    def where(self, _: object) -> Frame:
        return self

    def select(self, *_: object) -> Frame:
        return self

    def unionAll(self, _: object) -> Frame:  # noqa: N802 - Spark's name
        return self


class Stored(Frame):
    """What is set aside of a table, of which only the heads are asked for."""

    def __init__(self, heads: list[dict[str, Any]]) -> None:
        self._heads = heads

    def groupBy(self, _: object) -> Stored:  # noqa: N802 - Spark's name
        return self

    def agg(self, *_: object) -> Stored:
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self._heads


class Tables:
    """The lake's tables, as far as a plan looks at them."""

    def __init__(self) -> None:
        self.durable: dict[tuple[str, str], int] = {}
        self.aside: list[dict[str, Any]] = []

    def durable_lsn(self, kind: str, name: str) -> int:
        return self.durable.get((kind, name), 0)

    def partitions(self, kind: str, name: str) -> tuple[()]:
        return ()

    def schema(self, kind: str, name: str) -> None:
        """It is there once a batch has written it."""

    def key(self, name: str) -> tuple[str, ...] | None:
        raise AssertionError(f"every message of {name} says what tells its rows")

    def history(self, name: str, start: int, end: int, kind: str) -> Stored:
        return Stored(self.aside)


class NothingKnown:
    def before(self, *_: object) -> None:
        return None

    def names(self, _: int) -> tuple[()]:
        return ()


def heads(slot: ArrowSlot, start: int, end: int) -> list[dict[str, Any]]:
    """Return the heads of a range's messages, as a batch's aggregate gives them."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    bodies = DirectoryClient(slot.directory).read(slot.slot_name, start, end)
    for batch in envelopes(bodies, start, end, ENVELOPE):
        for row in batch.to_pylist():
            if row["relation"] is None:
                continue
            first = Place(first_commit_lsn=row["first_commit_lsn"], first_seq=row["first_seq"])
            last = Place(last_commit_lsn=row["last_commit_lsn"], last_seq=row["last_seq"])
            head = found.setdefault(
                (row["relation"], row["fingerprint"]), {**row, "first": first, "changes": 0}
            )
            head["last"] = last
            head["changes"] += row["changes"]
    return list(found.values())


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[planning.Planner, Tables]:
    class Functions:
        def col(self, name: str) -> str:
            return name

    monkeypatch.setattr(planning, "F", Functions())
    monkeypatch.setattr(planning, "head_facts", list)
    tables = Tables()
    made = planning.Planner(
        cast("Any", tables), tmp_path, cast("Any", NothingKnown()), OnSchemaChange.EVOLVE, ()
    )
    return made, tables


def test_a_table_is_cut_where_a_value_is_refused(
    planner: tuple[planning.Planner, Tables], tmp_path: Path
) -> None:
    plans, tables = planner
    slot = ArrowSlot(tmp_path / "slot", start_lsn=BEGIN)

    def plan(start: int, end: int) -> planning.Plan:
        batch = Batch("shop", start, end, 0)
        found = cast("Any", heads(slot, start, end))
        return plans.plan(found, cast("Any", Frame()), batch, start)

    def parts(of: planning.Plan) -> list[tuple[str, int, int]]:
        return [(p.relation.name, p.batch.start_lsn, p.batch.end_lsn) for p in of.parts]

    slot.commit(insert(ODD, id=1, at=None), insert(FINE, id=1))
    good = slot.commit(insert(ODD, id=2, at=None))
    bad = refusing(insert(ODD, id=3, at=None), at="infinity")
    refused = slot.commit(insert(ODD, id=4, at=None), bad, insert(FINE, id=2)) - 48
    end = slot.commit(insert(ODD, id=5, at=None))
    first = plan(BEGIN, end)
    assert parts(first) == [("public.fine", BEGIN, end), ("public.odd", BEGIN, refused)]
    assert good <= refused
    assert list(first.aside) == ["public.odd"]
    state = quarantine.quarantined(tmp_path)["public.odd"]
    assert (state.lsn_value, state.by_command) == (refused, True)
    for words in ("column 'at' of public.odd", "infinity is none in Arrow (infinity)", "--give-up"):
        assert words in state.reason

    # What follows stays aside; who asks for it without a load is told why it can't come.
    tables.durable[QUARANTINE, "public.odd"] = end
    tables.aside = [h for h in heads(slot, BEGIN, end) if h["relation"] == "public.odd"]
    later = slot.commit(insert(ODD, id=6, at=None), insert(FINE, id=6))
    assert parts(plan(end, later)) == [("public.fine", end, later)]
    quarantine.resume(tmp_path, ["public.odd"])
    again = plan(end, later)
    assert parts(again) == [("public.fine", end, later)]
    assert list(again.aside) == ["public.odd"]
    state = quarantine.quarantined(tmp_path)["public.odd"]
    assert not state.resumed
    assert "infinity is none in Arrow" in state.reason

    # Loaded as of later, and what is aside from before that given up.
    tables.durable[CURRENT, "public.odd"] = end
    tables.aside = []
    quarantine.resume(tmp_path, ["public.odd"], gives_up=True)
    back = plan(end, later)
    assert back.released == {"public.odd"}
    assert [name for name, _, _ in parts(back)] == ["public.fine", "public.odd"]
    # The whole range again, after a crash: its history is further.
    quarantine.release(tmp_path, "public.odd")
    tables.durable[HISTORY, "public.odd"] = later
    assert plan(BEGIN, later).quarantined == {}


@pytest.mark.parametrize("policy", OnSchemaChange)
def test_every_policy_sets_such_a_table_aside_alone(
    planner: tuple[planning.Planner, Tables], tmp_path: Path, policy: OnSchemaChange
) -> None:
    tables = planner[1]
    plans = planning.Planner(cast("Any", tables), tmp_path, cast("Any", NothingKnown()), policy, ())
    slot = ArrowSlot(tmp_path / "slot", start_lsn=BEGIN)
    bad = refusing(insert(ODD, id=3, at=None), at="infinity")
    end = slot.commit(bad, insert(FINE, id=1))
    found = cast("Any", heads(slot, BEGIN, end))
    plan = plans.plan(found, cast("Any", Frame()), Batch("shop", BEGIN, end, 0), BEGIN)
    assert plan.error is None
    assert [part.relation.name for part in plan.parts] == ["public.fine"]
    assert quarantine.quarantined(tmp_path)["public.odd"].by_command


def test_what_is_cut_of_a_message_still_tells_of_its_values(tmp_path: Path) -> None:
    slot = ArrowSlot(tmp_path / "slot", start_lsn=BEGIN)
    slot.commit(refusing(insert(ODD, id=3, at=None), at="infinity"))
    (file,) = (tmp_path / "slot").glob("*.arrow")
    told = refused_of(parse_message(file.read_bytes()).batch.schema)
    assert told is not None
    (value,) = told.values
    assert told.from_lsn(value.commit_lsn) == value
    assert told.from_lsn(value.commit_lsn + 1) is None


class Context:
    defaultParallelism = 2  # noqa: N815 - Spark's name


class Session:
    sparkContext = Context()  # noqa: N815 - Spark's name


class Snapshot:
    def close(self) -> None:
        pass


class Source:
    database = "shop"

    def wal_lsn(self) -> int:
        return BEGIN

    def check_server(self) -> None:
        pass

    def snapshot(self, *_: object) -> Snapshot:
        return Snapshot()


class Load(InitialLoad):
    """A load in which a table fails as it is told."""

    def __init__(self, path: Path, failures: dict[str, BaseException]) -> None:
        self.said: list[object] = []
        self.loaded: list[str] = []
        self.failures = failures
        slot = SlotPosition("shop", "arrow", "shop", "shop", BEGIN, BEGIN)
        super().__init__(
            cast("Any", Session()), cast("Any", None), path, cast("Any", Source()), slot,
            threading.Event(), self.said.append,
        )  # fmt: skip

    def _load(self, name: str, snapshot: object) -> None:
        if name in self.failures:
            raise self.failures[name]
        self.loaded.append(name)


def tables_of(path: Path, names: Sequence[str]) -> list[SourceTable]:
    for name in names:
        store_state(path, f"public.{name}", LoadState(f"public.{name}"))
    return [SourceTable("public", name, size) for size, name in enumerate(names)]


@pytest.mark.parametrize(
    "error",
    [
        ValueNotRepresentable("table public.b: column d: infinity", hint="Set the option."),
        LakeError("partitioned by what it hasn't", hint="Name another.", relation="public.b"),
    ],
)
def test_a_load_passes_over_a_table_that_fails(tmp_path: Path, error: BaseException) -> None:
    load = Load(tmp_path, {"public.b": error})
    failed = load.run(tables_of(tmp_path, ("a", "b", "c")))
    assert load.loaded == ["public.a", "public.c"]
    assert failed == [LoadFailed("public.b", cast("Any", error))]
    assert load.said == failed
    assert failed_loads(tmp_path) == {"public.b": str(failed[0])}
    # Loaded again it counts as never failed.
    again = Load(tmp_path, {})
    state = load_state(tmp_path, "public.b")
    assert state is not None
    assert state.stage == Stage.WAITING
    assert again.run(tables_of(tmp_path, ("b",))) == []
    assert failed_loads(tmp_path) == {}


@pytest.mark.parametrize("error", [LakeError("another server"), OSError(5, "Input/output error")])
def test_what_is_the_trouble_of_all_ends_a_load(tmp_path: Path, error: Exception) -> None:
    class Slow(Load):
        def _load(self, name: str, snapshot: object) -> None:
            super()._load(name, snapshot)
            time.sleep(0.1)

    load = Slow(tmp_path, {"public.b": error})
    with pytest.raises(type(error), match=str(error).partition("] ")[2] or str(error)):
        load.run(tables_of(tmp_path, "abcdefghijkl"))
    # Those that had begun beside it are done, the others were not begun.
    assert "public.a" in load.loaded
    assert len(load.loaded) < 8
    assert failed_loads(tmp_path) == {}


def test_two_tables_whose_names_are_one_text(
    planner: tuple[planning.Planner, Tables], tmp_path: Path
) -> None:
    plans, _ = planner
    slot = ArrowSlot(tmp_path / "slot", start_lsn=BEGIN)
    columns = {"id": pa.int64(), "v": pa.string()}
    first = Table("c", columns, schema="a.b", oid=1)
    second = Table("b.c", columns, schema="a", oid=2)

    def plan(start: int, end: int) -> planning.Plan:
        found = cast("Any", heads(slot, start, end))
        return plans.plan(found, cast("Any", Frame()), Batch("shop", start, end, 0), start)

    # The one that comes first is followed, and goes on beside the other, which is set aside.
    own = slot.commit(insert(first, id=1, v="own"), insert(FINE, id=1))
    directories = [part.relation.directory for part in plan(BEGIN, own).parts]
    assert directories == ["a~2Eb.c", "public.fine"]
    other = slot.commit(insert(second, id=2, v="other"), insert(FINE, id=2))
    apart = plan(own, other)
    assert [part.relation.directory for part in apart.parts] == ["public.fine"]
    assert apart.quarantined.keys() == apart.aside.keys() == {"a.b~2Ec"}
    told = '"a"."b.c" and "a.b"."c" are two tables, and both names are a.b.c in a lake'
    assert told in apart.quarantined["a.b~2Ec"].reason
    later = slot.commit(insert(first, id=3, v="own"))
    assert [part.relation.directory for part in plan(other, later).parts] == ["a~2Eb.c"]
    # In one batch their messages can't be told apart.
    both = slot.commit(insert(first, id=4, v="own"), insert(second, id=5, v="other"))
    together = plan(later, both)
    assert together.parts == []
    assert together.aside.keys() == {"a.b~2Ec", "a~2Eb.c"}
