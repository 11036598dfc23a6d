# cython: language_level=3
"""One table in a pgoutput session: what its consumer was told, and the writers of its rows."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spillway._kernels.messages.buffer cimport ByteBuffer
from spillway._kernels.encoders.pgoutput.tuple cimport RowWriter
from spillway._kernels.values.send.scalar cimport put_int32
from spillway._kernels.values.text.output cimport TextContext


cdef class RelationState:
    # a plugins.pgoutput_relation.Publishing; kept while it is valid, as PostgreSQL does
    cdef object publishing
    # descriptor of the table under whose name it was published last
    cdef object target
    # it was the table itself
    cdef bint encodes_itself
    # false: the rules have to be found anew before the next change
    cdef bint rules_valid
    # false: the table has to be announced anew before the next change; since 15 both are false or
    # neither
    cdef bint valid
    # counts how often either was
    cdef uint64_t generation
    cdef bint schema_sent
    # top-level xids of streamed transactions, not yet ended, within which the table was announced
    cdef set streamed
    # part of a streamed transaction for which ``streamed`` was looked into and has its xid
    cdef uint64_t known_in_part


# RelationStates by oid in a form that compares, and back; what is known of streamed transactions is
# not in it.
cdef tuple saved_states(dict states)
cdef dict loaded_states(tuple saved)

# Those of which something is valid still: others, as those of dropped tables, would begin anew
# anyway.
cdef dict kept_states(dict states)


cdef inline int invalidate_state(RelationState state, bint keep_rules) except -1:
    state.valid = False
    state.rules_valid = state.rules_valid and keep_rules
    if state.target is not None and state.encodes_itself:
        # The next change brings its descriptor.
        state.target = None
    return 0


cdef struct Judgement:
    # there is a row filter
    bint filtered
    # changes of this relation and action that the chunk had so far
    size_t seen
    # what the filter says of each of them, once it was asked in this chunk; in ``Encoder.verdicts``
    const uint8_t* verdicts
    size_t count


cdef class RelationEncoder:
    cdef object descriptor
    cdef RelationState state
    cdef uint64_t generation
    cdef RowWriter rows
    cdef bint inserts
    cdef bint updates
    cdef bint deletes
    cdef bint truncates
    # oid that stands in a change's message: the table's, or its root's
    cdef uint32_t target_oid
    cdef uint32_t oid
    # O or K: what an old tuple is
    cdef uint8_t old_tag
    # By action, INSERT first: a plugins.row_filter.RowFilter or None
    cdef tuple filters
    cdef Judgement[3] judgements
    # the chunk that they are about
    cdef uint64_t chunk
    # Bodies of the messages that announce the table, without the xid that may follow their first
    # byte.
    cdef tuple announcement


cdef inline bint is_current(RelationEncoder encoder) noexcept nogil:
    return (encoder.state.valid and encoder.state.rules_valid
            and encoder.generation == encoder.state.generation)


cdef inline int put_truncated(RelationEncoder encoder, ByteBuffer* out) except -1 nogil:
    if encoder.truncates:
        return put_int32(out, encoder.oid)
    return 0
