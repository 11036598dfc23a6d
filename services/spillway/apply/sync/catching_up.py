"""What tables lack since their snapshot, read from the slot beside its consumer.

One transaction of the target has all of it and the tables' new state, so that it is there as a
whole or not at all, and needs no position of its own. As the stream's, changes are written in
groups; a group that does not fit is taken back to a savepoint and written change by change, where a
conflict is seen, resolved and told. DDL of the tables is done at its place between the rows; DDL
that is not done keeps all from being written, and the error says from where.

What a constraint refuses that waited for the end is no row's that is known then. With dead letters
all is written once more, change by change, and that constraint is checked with the end of each
transaction of the source; where it refuses that, with each row.

Prepared transactions come whole with their COMMIT PREPARED: the peek asks for that
(``spillway.whole_prepared``), since its slot tells of them before.

Whoever stops it does not wait for the target: see :mod:`spillway.apply.target.stop`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg

from spillway._kernels.apply.change_group import ChangeGroup
from spillway.apply.exact.failures import catching_up_refused
from spillway.apply.exact.writer import ExactOptions, ExactWriter
from spillway.apply.grouped.writer import GroupedWriter
from spillway.apply.schema.changes import OwnSchemaChanges
from spillway.apply.stream import ArrivingChanges
from spillway.apply.sync.origins import mark
from spillway.apply.tables.matching import same_name
from spillway.apply.tables.target_tables import TargetTables
from spillway.apply.target.failures import from_postgres
from spillway.apply.target.session import TargetSession
from spillway.apply.target.stop import Stopped
from spillway.errors import SpillwayError
from spillway.pg.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from spillway.apply.changes import SourceRelation
    from spillway.apply.conflicts.log import ConflictLog
    from spillway.apply.schema.following import Following
    from spillway.apply.sync.hand_over import BeforeCommit
    from spillway.apply.sync.states import TableName
    from spillway.apply.tables.matching import Rename
    from spillway.apply.target.session import TargetPlan
    from spillway.apply.target.stop import Stop
    from spillway.tls import ClientTls

_GROUP_BYTES: Final = 4 << 20


class SlotCatchUp:
    """See :class:`spillway.apply.sync.hand_over.CatchUp`.

    Args:
        grpc: host:port of the service.
        slot: the subscription's.
        plugin_options: pgoutput's, by which prepared transactions come whole.
        plan: of the subscription's sessions on the target.
        log: hears of conflicts.
        stopping: ends it, whatever the target does; nothing is written then.
        options: what becomes of conflicts.
        always_exact: nothing is written in groups.
        following: makes what does DDL in a session; without it DDL is passed over.
        rename: the name on the target of a (schema, table) of the source.
        token: the service's.
        tls: what it is verified with.
    """

    def __init__(
        self,
        grpc: str,
        slot: str,
        plugin_options: Mapping[str, str],
        plan: TargetPlan,
        log: ConflictLog,
        stopping: Stop,
        options: ExactOptions | None = None,
        rename: Rename = same_name,
        *,
        always_exact: bool = False,
        following: Callable[[psycopg.Connection[Any]], Following] | None = None,
        token: str | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._grpc = grpc
        self._slot = slot
        self._plugin_options = plugin_options
        self._plan = plan
        self._log = log
        self._stopping = stopping
        self._options = replace(options or ExactOptions(), may_skip=False)
        self._rename = rename
        self._always_exact = always_exact
        self._following = following
        self._token = token
        self._tls = tls

    def __call__(
        self,
        tables: frozenset[TableName],
        start_lsn: int,
        upto_lsn: int,
        before_commit: BeforeCommit,
    ) -> None:
        """Write what the slot has for *tables* in [*start_lsn*, *upto_lsn*)."""
        checked: list[str] = []
        try:
            while refused := self._attempt(tables, start_lsn, upto_lsn, before_commit, checked):
                checked += refused
        except SpillwayError as error:
            # What was cancelled is nobody's fault.
            if self._stopping.is_set():
                raise Stopped from error
            raise

    def _attempt(
        self,
        tables: frozenset[TableName],
        start_lsn: int,
        upto_lsn: int,
        before_commit: BeforeCommit,
        checked: list[str],
    ) -> list[str]:
        """Write it, with *checked* constraints checked at the end of each of the source's
        transactions; return those that refused the end of all, and have to be: nothing is written
        then.
        """
        #: what they were called, by what they are called at the place where this is
        names = {key: key for key in tables}

        def should_apply(relation: SourceRelation, commit_lsn: int) -> bool:
            del commit_lsn
            return (relation.schema, relation.name) in names

        if self._stopping.is_set():
            raise Stopped
        with TargetSession(self._plan, self._stopping, is_beside=True) as session:
            matched = TargetTables(self._rename, self._options.rules.merging)
            if session.facts.may_use_origins:
                session.uses_origin = mark(session.connection, self._plan.origin)
            following = None if self._following is None else self._following(session.connection)
            exact = ExactWriter(
                session,
                matched,
                self._options,
                self._log,
                should_apply,
                None if following is None else OwnSchemaChanges(following, names),
            )
            grouped = None
            if not (self._always_exact or checked):
                grouped = GroupedWriter(session, matched, should_apply)
            told = ", ".join(sorted(".".join(name) for name in tables))
            try:
                session.begin()
                if start_lsn < upto_lsn:
                    self._write(exact, grouped, matched, checked, start_lsn, upto_lsn)
                if following is not None:
                    following.end()
                before_commit(session.connection, {was: now for now, was in names.items()})
                return self._commit(session, exact, told, checked)
            except psycopg.Error as error:
                raise from_postgres(error, f"{told} can't catch up", self._plan.dsn) from error
            finally:
                if following is not None:
                    following.close()

    def _commit(
        self, session: TargetSession, exact: ExactWriter, told: str, checked: Sequence[str]
    ) -> list[str]:
        try:
            session.connection.execute("COMMIT")
        except psycopg.IntegrityError as error:
            refused = exact.may_have_refused(error) if self._options.dead_letter else []
            if set(refused) <= set(checked):
                raise catching_up_refused(error, told, session.subscription) from error
            return refused
        return []

    def _write(
        self,
        exact: ExactWriter,
        grouped: GroupedWriter | None,
        matched: TargetTables,
        checked: Sequence[str],
        start_lsn: int,
        upto_lsn: int,
    ) -> None:
        group = ChangeGroup(_GROUP_BYTES)
        is_within = False

        def write() -> None:
            nonlocal is_within
            matched.learn(touched.relation for touched in group.touched())
            if grouped is None or group.has_schema_change or not grouped.write_into(group):
                # A piece can't be written once more with those before it, nor what DDL has renamed.
                is_whole = not (group.is_piece or is_within or group.has_schema_change)
                for unit, head in enumerate(group.heads()):
                    if checked and is_whole:
                        exact.write_whole_into(head, partial(group.changes, unit), checked)
                    else:
                        exact.write_into(head, group.changes(unit))
            is_within = group.is_piece
            group.clear()

        with ArrivingChanges(
            self._grpc,
            self._slot,
            Lsn(start_lsn),
            self._plugin_options,
            upto_lsn=Lsn(upto_lsn),
            peek=True,
            token=self._token,
            tls=self._tls,
        ) as stream:
            if not stream.read_into(group, write, self._stopping):
                raise Stopped
