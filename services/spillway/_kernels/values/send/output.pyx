# cython: language_level=3, boundscheck=False, wraparound=False
"""From a type to the function that writes its send format: compiled once per relation descriptor,
called per value.

A :class:`SendCompiler` is a :class:`TypeCompiler` with other writers. A column has no compiled type
for sending, and goes out as text, as every consumer of a binary stream must be ready for,

- if its type has no send function: that is PostgreSQL's rule (logicalrep_write_tuple);
- if the type contains one without, or one whose send function is not known here: PostgreSQL raises
  an error for the former; for the latter, the text is the right value in the other of two formats.

Built-in types are found by oid, others by the name of their send function. A package adds send
functions through the entry point group ``spillway.send_codecs`` (``plugins/type_codecs.py``).
"""

from libc.stdint cimport uint8_t, uint32_t

from spillway._kernels.values.send cimport (
    container,
    extension,
    scalar,
    search,
    text,
)
from spillway._kernels.values.send.text cimport SentText
from spillway._kernels.values.text.output cimport CompiledType, TextContext, TypeCompiler, written
from spillway._kernels.values.type cimport text_writer
from spillway.plugins.type_codecs import find_send_codec

# oid → (writer, attlen, attalign)
cdef dict BUILT_IN = {}
# Types whose send format is made of their text: oid → writer
cdef dict BUILT_IN_TEXTS = {}


cdef void built_in(text_writer writer, int length, str align, tuple oids):
    for oid in oids:
        BUILT_IN[oid] = (<size_t>writer, length, align)


built_in(scalar.bool_send, 1, "c", (16,))
built_in(scalar.bytes_send, -1, "i", (17,))
built_in(scalar.bytes_send, 1, "c", (18,))
built_in(scalar.int8_send, 8, "d", (20,))
built_in(scalar.int2_send, 2, "s", (21,))
built_in(scalar.int4_send, 4, "i", (23,))
# oid, xid, cid
built_in(scalar.int4_send, 4, "i", (26, 28, 29))
# regproc, regprocedure, regoper, regoperator, regclass, regtype, regconfig, regdictionary,
# regnamespace, regrole, regcollation
built_in(scalar.int4_send, 4, "i", (24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191))
built_in(scalar.tid_send, 6, "s", (27,))
# point; lseg, box; line, circle
built_in(scalar.int8_send, 16, "d", (600,))
built_in(scalar.int8_send, 32, "d", (601, 603))
built_in(scalar.int8_send, 24, "d", (628, 718))
built_in(scalar.path_send, -1, "d", (602,))
built_in(scalar.polygon_send, -1, "d", (604,))
built_in(scalar.cidr_send, -1, "i", (650,))
built_in(scalar.int4_send, 4, "i", (700,))
built_in(scalar.int8_send, 8, "d", (701,))
built_in(scalar.bytes_send, 8, "i", (774,))
built_in(scalar.int8_send, 8, "d", (790,))
built_in(scalar.bytes_send, 6, "i", (829,))
built_in(scalar.inet_send, -1, "i", (869,))
# date; time, timestamp, timestamptz
built_in(scalar.int4_send, 4, "i", (1082,))
built_in(scalar.int8_send, 8, "d", (1083, 1114, 1184))
built_in(scalar.interval_send, 16, "d", (1186,))
built_in(scalar.timetz_send, 12, "d", (1266,))
built_in(scalar.bit_send, -1, "i", (1560, 1562))
built_in(scalar.numeric_send, -1, "i", (1700,))
built_in(scalar.bytes_send, 16, "c", (2950,))
# txid_snapshot, pg_snapshot
built_in(scalar.snapshot_send, -1, "d", (2970, 5038))
built_in(scalar.int8_send, 8, "d", (3220, 5069))
built_in(search.tsvector_send, -1, "i", (3614,))
built_in(search.tsquery_send, -1, "i", (3615,))
# pg_ndistinct, pg_dependencies, pg_brin_bloom_summary, pg_brin_minmax_multi_summary, pg_mcv_list
built_in(scalar.bytes_send, -1, "i", (3361, 3402, 4600, 4601, 5017))

# name, text, json, xml, pg_node_tree, bpchar, varchar, refcursor
for _oid in (19, 25, 114, 142, 194, 1042, 1043, 1790):
    BUILT_IN_TEXTS[_oid] = <size_t>text.text_send
# jsonb, jsonpath
for _oid in (3802, 4072):
    BUILT_IN_TEXTS[_oid] = <size_t>text.versioned_text_send

# Send functions of extensions.
cdef dict EXTENSIONS = {
    "hstore_send": (<size_t>search.hstore_send, -1),
    "cube_send": (<size_t>extension.cube_send, -1),
    "vector_send": (<size_t>extension.vector_send, -1),
    "halfvec_send": (<size_t>extension.halfvec_send, -1),
    "sparsevec_send": (<size_t>extension.sparsevec_send, -1),
}
cdef dict EXTENSION_TEXTS = {
    "citextsend": <size_t>text.text_send,
    "ltree_send": <size_t>text.versioned_text_send,
    "lquery_send": <size_t>text.versioned_text_send,
    "ltxtq_send": <size_t>text.versioned_text_send,
}

# FirstNormalObjectId: below it are the objects that initdb makes, the same everywhere.
cdef enum:
    FIRST_NORMAL_OID = 16384

cdef frozenset VECTORS = frozenset({22, 30})


cdef class SendCompiler(TypeCompiler):
    """Compiles the types of one relation descriptor for binary output.

    Args:
        context: holds the database's encoding; none of the settings matters to send formats.
        types: ``RelationDescriptor.types``.
    """

    def __cinit__(self, TextContext context not None, types):
        self.texts = TypeCompiler(context, types)

    cpdef CompiledType column(self, column):
        """Return the compiled type of a ColumnDescriptor; None: its values are sent as text.

        Raises:
            DecodingError: the column and its type contradict each other.
        """
        descriptor = self.types.get(column.type_oid)
        if (descriptor is None and column.type_oid not in BUILT_IN
                and column.type_oid not in BUILT_IN_TEXTS):
            return None
        return TypeCompiler.column(self, column)

    cdef CompiledType begin(self):
        cdef CompiledType begun = TypeCompiler.begin(self)
        cdef SentText sent
        rules = self.context.settings.sent_text
        if rules is not None:
            sent = SentText(*rules)
            begun.owned.append(sent)
            begun.output.codec = &sent.rules
        return begun

    cdef object built_in(self, uint32_t oid):
        return BUILT_IN.get(oid)

    cdef CompiledType fallback(self, object descriptor, uint32_t oid, int length, str align):
        return None

    cdef int fill(self, CompiledType target, object descriptor) except -1:
        cdef CompiledType printed
        writer = BUILT_IN_TEXTS.get(descriptor.oid)
        if writer is None and descriptor.oid >= FIRST_NORMAL_OID:
            writer = EXTENSION_TEXTS.get(descriptor.send)
        if writer is not None or descriptor.kind == "e":
            printed = self.texts.compile(descriptor.oid)
            if printed is None:
                return 0
            target.owned.append(printed)
            target.output.element = &printed.output
            target.output.write = text.text_send if writer is None else <text_writer><size_t>writer
            return 1
        if descriptor.is_array or descriptor.oid in VECTORS or descriptor.kind in "rmc":
            if not self.fill_container(target, descriptor):
                return 0
            if descriptor.oid in VECTORS:
                target.output.write = container.vector_send
            elif descriptor.is_array:
                target.output.write = container.array_send
            elif descriptor.kind == "r":
                target.output.write = container.range_send
            elif descriptor.kind == "m":
                target.output.write = container.multirange_send
            else:
                target.output.write = container.record_send
            return 1
        if descriptor.oid < FIRST_NORMAL_OID or not descriptor.send:
            return 0
        known = EXTENSIONS.get(descriptor.send)
        if known is not None and known[1] == descriptor.length:
            target.output.write = <text_writer><size_t>known[0]
            return 1
        codec = find_send_codec(descriptor.send)
        if codec is None:
            return 0
        self.fill_codec(target, descriptor, codec)
        return 1


def datum_send(column, types, settings, const uint8_t[::1] payload not None):
    """Return one value in its type's send format, None if it is sent as text: for tests and tools.

    Args:
        column: the ColumnDescriptor of the value.
        types: ``RelationDescriptor.types``.
        settings: a ``pg.text_settings.TextSettings``.
        payload: the value as a Datum has it: a varlena without its header.

    Raises:
        DecodingError: the value is malformed.
    """
    cdef CompiledType compiled = SendCompiler(TextContext(settings), types).column(column)
    return None if compiled is None else written(compiled, payload)
