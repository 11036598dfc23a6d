# cython: language_level=3, boundscheck=False, wraparound=False
"""One table in a pgoutput session.

A consumer keeps what it was told of a table until the session ends, and so does the session: that
is the table's *state*, by its oid. How its rows are written depends on its descriptor, too, and is
*compiled* from both; what is compiled is good until the state's generation changes.

Source: RelationSyncEntry, get_rel_sync_entry, src/backend/replication/pgoutput/pgoutput.c
"""

from spillway._kernels.encoders.pgoutput.tuple cimport RowWriter
from spillway._kernels.values.text.output cimport TextContext

from spillway.plugins.pgoutput_relation import (announcement, published_attnums, row_filters,
                                                with_ancestor)


cdef class RelationState:
    """What this session has told its consumer of one table, and by which rules the table is
    published.
    """

    def __cinit__(self):
        self.streamed = set()


cdef tuple saved_states(dict states):
    cdef RelationState state
    cdef list saved = []
    for oid in sorted(states):
        state = states[oid]
        saved.append((oid, state.publishing, state.target, state.rules_valid, state.valid,
                      state.schema_sent))
    return tuple(saved)


cdef dict loaded_states(tuple saved):
    cdef RelationState state
    cdef dict states = {}
    for oid, publishing, target, rules_valid, valid, schema_sent in saved:
        state = RelationState()
        state.publishing = publishing
        state.target = target
        state.encodes_itself = target is not None and target.oid == oid
        state.rules_valid = rules_valid
        state.valid = valid
        state.schema_sent = schema_sent
        states[oid] = state
    return states


cdef dict kept_states(dict states):
    cdef RelationState state
    cdef dict kept = {}
    for oid, state in states.items():
        if state.valid or state.rules_valid or state.streamed:
            kept[oid] = state
    return kept


cdef class RelationEncoder:
    """A table as of one descriptor and one state of what is published of it, compiled."""

    def __init__(self, descriptor, RelationState state not None, TextContext context not None,
                 bint binary):
        cdef int i
        publishing = state.publishing
        self.descriptor = descriptor
        if state.target is not None and state.target.oid == publishing.publish_as:
            # 14 learns only with new rules that a partition was detached.
            descriptor = with_ancestor(descriptor, state.target)
        state.target = target = publishing.target(descriptor)
        state.encodes_itself = target.oid == descriptor.oid
        self.state = state
        self.generation = state.generation
        self.oid = descriptor.oid
        self.target_oid = target.oid
        self.inserts = publishing.insert
        self.updates = publishing.update
        self.deletes = publishing.delete
        # A partition's truncation does not go out under its root's name.
        self.truncates = publishing.truncate and target.oid == descriptor.oid
        self.old_tag = c'O' if target.replica_identity == "f" else c'K'
        if not (self.inserts or self.updates or self.deletes or self.truncates):
            return
        self.announcement = announcement(descriptor, publishing)
        self.filters = row_filters(descriptor, publishing, context.settings.encoding)
        for i in range(3):
            self.judgements[i].filtered = self.filters[i] is not None
        self.rows = RowWriter(descriptor, published_attnums(descriptor, publishing), context,
                              binary)
