"""Row filters: which rows of a table a publication's WHERE lets through, for a whole chunk of
changes at once.

A slot's publications may give a table several filters for an action; a row passes when any of them
is true (:func:`compile_row_filter` takes them all). A plugin that meets a change of such a table in
a chunk asks once::

    verdicts = row_filter.verdicts(chunk, relation_id, change_format.UPDATE, only_local=False)

and gets a byte for each change of that relation by that action in the chunk, in order: whether it
is published, and for an UPDATE as what. A DELETE that bears no old tuple can't be published and has
no byte; with *only_local* neither have changes under an origin.

An UPDATE that brings a row into the filter is an INSERT for the consumer, one that takes it out a
DELETE. The row that is then inserted takes unchanged TOAST values from the old tuple.

Filters look at the table under whose name changes go out, which may be the root of the partition
that was written to: its columns are found by name.

Source: pgoutput_row_filter, pgoutput_row_filter_init, src/backend/replication/pgoutput/pgoutput.c
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from spillway._kernels.encoders.row_filter import FilterRows
from spillway.errors import DecodingError, UnsupportedFeature
from spillway.plugins.row_filter_compiler import compile_filter
from spillway.plugins.row_filter_expression import Rows, combine
from spillway.plugins.row_filter_functions import ARROW_TYPES, COLUMN_TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spillway.catalog.descriptor import RelationDescriptor
    from spillway.plugins.row_filter_expression import Expression

#: Verdicts: the change is left out; stays what it is; an UPDATE becomes an INSERT, a DELETE.
DROP: Final = 0
KEEP: Final = 1
AS_INSERT: Final = 2
AS_DELETE: Final = 3


class RowFilter:
    """The filters of one table for one action, compiled. Keeps nothing between calls."""

    def __init__(
        self,
        descriptor: RelationDescriptor,
        expression: Expression,
        columns: Sequence[tuple[int, int, int]],
    ) -> None:
        """Take *columns*: attnum in the filter, attnum in the tuples, type; see
        :func:`compile_row_filter`.
        """
        self._name = f"{descriptor.schema}.{descriptor.name}"
        self._expression = expression
        self._columns = columns
        self._rows = FilterRows(
            descriptor,
            [(attnum, *COLUMN_TYPES[type_oid][:2]) for _, attnum, type_oid in columns],
        )

    def verdicts(
        self, chunk: memoryview | bytes, relation: int, action: int, *, only_local: bool
    ) -> bytes:
        """Say what becomes of each change of *relation* (a descriptor's id) by *action* in *chunk*.

        Raises:
            DecodingError: a change is malformed, or PostgreSQL fails to evaluate the filter, too.
            UnsupportedFeature: an operation is not there for types that it has in PostgreSQL.
        """
        if not self._rows.gather(chunk, relation, action, only_local):
            return b""
        passes = self.mask().cast(pa.uint8())
        return self._rows.verdicts(passes.buffers()[1].to_pybytes()[: len(passes)])

    def mask(self) -> pa.BooleanArray:
        """Evaluate for the rows gathered last; null counts as false."""
        count = self._rows.rows
        columns = {}
        for i, (filter_attnum, _, type_oid) in enumerate(self._columns):
            null_count, buffers = self._rows.column_buffers(i)
            arrays = [None if b is None else pa.py_buffer(b) for b in buffers]
            array = pa.Array.from_buffers(COLUMN_TYPES[type_oid][2], count, arrays, null_count)
            if array.type != ARROW_TYPES[type_oid]:
                array = array.cast(ARROW_TYPES[type_oid])
            columns[filter_attnum] = array
        rows = Rows(columns, count)
        try:
            result = rows.array(self._expression.evaluate(rows))
        except NotImplementedError as error:
            raise UnsupportedFeature(
                f"a row filter of {self._name} can't be evaluated: {error}",
                hint="Take the filter off the publication, and filter where the changes arrive.",
            ) from error
        except pa.ArrowInvalid as error:
            why = "division by zero" if "divide by zero" in str(error) else "integer out of range"
            raise DecodingError(
                f"a row filter of {self._name} can't be evaluated: {why}",
                hint="PostgreSQL's own decoding fails here, too. Change the publication's WHERE; "
                "rows that were written before need the slot to go past them.",
            ) from error
        return pc.fill_null(result, False)


def compile_row_filter(
    descriptor: RelationDescriptor,
    target: RelationDescriptor,
    node_trees: Sequence[str],
    *,
    encoding: str = "utf-8",
) -> RowFilter:
    """Compile the filters of *target*, of which any has to be true, for tuples of *descriptor*.

    *target* is the table under whose name changes go out: *descriptor* or one of its ancestors.

    Raises:
        UnsupportedFeature: a filter can't be evaluated exactly; it says which publication's and
            what part.
        DecodingError: a node tree can't be understood.
    """
    attnums: set[int] = set()
    expressions = []
    for text in node_trees:
        try:
            expressions.append(compile_filter(text, encoding, attnums))
        except UnsupportedFeature as error:
            publications = sorted(p.name for p in descriptor.publications if p.row_filter == text)
            raise UnsupportedFeature(
                f"the row filter of table {target.schema}.{target.name} in publication"
                f" {', '.join(publications) or '?'} can't be evaluated: {error.message}",
                hint="Write the publication's WHERE with comparisons, AND, OR, NOT, IS NULL, IN, "
                "LIKE and integer arithmetic, or take the filter off and filter where the changes "
                "arrive.",
                table=f"{target.schema}.{target.name}",
                publications=publications,
            ) from error
    attnum_of = {c.name: c.attnum for c in descriptor.columns if not c.dropped}
    columns = []
    for attnum in sorted(attnums):
        if attnum > len(target.columns) or target.columns[attnum - 1].dropped:
            raise DecodingError(
                f"a row filter of {target.schema}.{target.name} names column {attnum}, which is "
                "not there"
            )
        column = target.columns[attnum - 1]
        if column.generated == "v":
            raise UnsupportedFeature(
                f"a row filter of {target.schema}.{target.name} names {column.name}, a virtual "
                "generated column",
                hint="Write the column's expression into the publication's WHERE.",
            )
        columns.append((attnum, attnum_of[column.name], column.type_oid))
    return RowFilter(descriptor, combine(expressions, any_of=True), columns)
