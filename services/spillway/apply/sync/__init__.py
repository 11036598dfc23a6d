"""Table sync: a subscription's tables begin as exact copies of the source's, and the stream goes on
from there.

=================  ===========================================================================
``states``         how far each table is, durable on the target: the worker asks before it applies
``published``      which tables, columns and rows the publications have
``plan``           ranges of blocks, and the two COPY statements of each
``copying``        bytes from the source's COPY into the target's, several ranges at once
``copiers``        the connections of one attempt
``held_snapshot``  the source's snapshot, while tables are copied
``first_copy``     a table's way from nothing to whole: i, d, f
``catching_up``    what a table lacks since its snapshot, read from the slot
``hand_over``      a table becomes the stream's: f, s, r
``table_sync``     what the worker talks to, and the thread beside the stream
``retries``        tables that failed, and when they are tried again
``indexes``        indexes dropped for the copy and made again, by option
``creation``       missing tables are made, by option
``definitions``    … from the source's catalog
``dump``           … from what its pg_dump writes
``sequences``      sequences' values
=================  ===========================================================================

::

    the service      snapshot as of L ─┐               the slot ────────── stream ──────────▶ worker
    sync             COPY … TO ▶ COPY … FROM, n connections │ f at L           │ at_boundary(W)
                                                            └ catch up L → W ──┘ s at W, then r

A table that was copied as of L is the stream's at once if the worker is not beyond L, as at first.
Else what it lacks is read again, beside the stream, from the slot itself (a *peek*): the slot is
not confirmed beyond L until then (:meth:`states.TableStates.hold_lsn`), so no second slot is needed
and nothing is lost when a process dies.
"""
