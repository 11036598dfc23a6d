"""Changes of tables' definitions on the source, brought to the target: ``on_schema_change``.

The service says in the stream what DDL did to a table, as a logical message with the prefix
``spillway.ddl`` in front of the first row of the new shape (docs/reference/ddl-events.md). The
exact writer hands each to :class:`~spillway.apply.schema.changes.SchemaChanges`, within the
target's open transaction::

    BEGIN ─▶ rows ─▶ event ─▶ plan: what the target still lacks ─▶ rows ─▶ position, COMMIT
                                 │ nothing: go on
                                 │ apply: run it, here
                                 └ pause, or what is not safe: TargetSchemaChange, ROLLBACK

A plan compares the event with the target's catalog as it is now, so that what is there already,
whoever made it, is passed over. That makes a pause mend itself: whoever has run the SQL that the
error prints, and enables the subscription, meets the same event again, and nothing is left to do.
What is run is committed with the rows around it and with the position: killed anywhere, it is done
once. An event of a table whose rows are somebody else's by then is theirs, too
(:mod:`spillway.apply.sync.deferred_ddl`).
"""
