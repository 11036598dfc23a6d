"""Table sync: a subscription's tables begin as exact copies of the source's, and the stream goes on from there.

=================  ===========================================================================
``states``         how far each table is, durable on the target: what the worker asks before it applies
``published``      which tables, columns and rows the publications have
``plan``           ranges of blocks, and the two COPY statements of each
``copying``        bytes from the source's COPY into the target's, several ranges at once
``table_sync``     the threads: snapshot, copies, hand-over to the worker at a commit boundary
``indexes``        indexes dropped for the copy and made again, by option
``definitions``    missing tables made from the source's definitions, by option
``sequences``      sequences' values
=================  ===========================================================================

::

    the service      snapshot as of L ─┐               the slot ────────── stream ──────────▶ worker
    sync             COPY … TO ▶ COPY … FROM, n connections │ f at L           │ at_boundary(W)
                                                            └ catch up L → W ──┘ s at W, then r

A table that was copied as of L is the stream's at once if the worker is not beyond L, as at first. Else
what it lacks is read again, beside the stream, from the slot itself (a *peek*): the slot is not confirmed beyond L
until then (:meth:`states.TableStates.hold_lsn`), so no second slot is needed and nothing is lost when a process dies.
"""  # noqa: E501
