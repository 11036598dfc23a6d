# cython: language_level=3, boundscheck=False, wraparound=False
"""From a type to the function that prints it: compiled once per relation descriptor, called per
value.

A :class:`TypeCompiler` turns the types that a relation descriptor holds into :c:type:`TypeOutput`
structures that refer to one another (an array to its element, a composite to its fields), so that
printing a nested value stays in C. Built-in types are found by oid: those are the same in every
database, and the same from PostgreSQL 14 to 18. Types without a writer in C may have a codec in
Python, which runs with the GIL; a type without either is printed raw (see ``plugins/type_codecs``).
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from spillway._kernels.values.datum cimport ALIGN_BYTES, Layout
from spillway._kernels.messages.buffer cimport ByteBuffer, put_bytes, release
from spillway._kernels.values.text cimport (
    container,
    datetime,
    extension,
    geometric,
    interval,
    jsonb,
    network,
    number,
    scalar,
)
from spillway._kernels.values.type cimport (
    DATE_STYLE_GERMAN,
    DATE_STYLE_ISO,
    DATE_STYLE_POSTGRES,
    DATE_STYLE_SQL,
    INTERVAL_STYLE_ISO_8601,
    INTERVAL_STYLE_POSTGRES,
    INTERVAL_STYLE_POSTGRES_VERBOSE,
    INTERVAL_STYLE_SQL_STANDARD,
    EnumLabel,
    TypeOutput,
    ZoneTransition,
    text_writer,
)
from spillway.errors import DecodingError
from spillway.pg.timezone import transitions
from spillway.plugins.type_codecs import find_codec, raw_prefix

# oid → (writer, attlen, attalign)
cdef dict BUILT_IN = {}


cdef void built_in(text_writer writer, int length, str align, tuple oids):
    for oid in oids:
        BUILT_IN[oid] = (<size_t>writer, length, align)


built_in(scalar.bool_text, 1, "c", (16,))
# bytea, pg_mcv_list
built_in(scalar.bytea_text, -1, "i", (17, 5017))
built_in(scalar.char_text, 1, "c", (18,))
built_in(scalar.name_text, 64, "c", (19,))
built_in(number.int8_text, 8, "d", (20,))
built_in(number.int2_text, 2, "s", (21,))
built_in(number.int4_text, 4, "i", (23,))
# text, json, pg_node_tree, bpchar, varchar, refcursor
built_in(scalar.text_text, -1, "i", (25, 114, 194, 1042, 1043, 1790))
# oid, xid, cid
built_in(number.uint4_text, 4, "i", (26, 28, 29))
built_in(scalar.tid_text, 6, "s", (27,))
built_in(geometric.point_text, 16, "d", (600,))
built_in(geometric.lseg_text, 32, "d", (601,))
built_in(geometric.path_text, -1, "d", (602,))
built_in(geometric.box_text, 32, "d", (603,))
built_in(geometric.polygon_text, -1, "d", (604,))
built_in(geometric.line_text, 24, "d", (628,))
built_in(network.cidr_text, -1, "i", (650,))
built_in(number.float4_text, 4, "i", (700,))
built_in(number.float8_text, 8, "d", (701,))
built_in(geometric.circle_text, 24, "d", (718,))
built_in(network.macaddr8_text, 8, "i", (774,))
built_in(number.money_text, 8, "d", (790,))
built_in(network.macaddr_text, 6, "i", (829,))
built_in(network.inet_text, -1, "i", (869,))
built_in(datetime.date_text, 4, "i", (1082,))
built_in(datetime.time_text, 8, "d", (1083,))
built_in(datetime.timestamp_text, 8, "d", (1114,))
built_in(datetime.timestamptz_text, 8, "d", (1184,))
built_in(interval.interval_text, 16, "d", (1186,))
built_in(datetime.timetz_text, 12, "d", (1266,))
# bit, varbit
built_in(scalar.bit_text, -1, "i", (1560, 1562))
built_in(number.numeric_text, -1, "i", (1700,))
built_in(scalar.uuid_text, 16, "c", (2950,))
built_in(scalar.pg_lsn_text, 8, "d", (3220,))
built_in(jsonb.jsonb_text, -1, "i", (3802,))
built_in(number.uint8_text, 8, "d", (5069,))

# output function → writer, for types of extensions
cdef dict EXTENSIONS = {
    "citextout": (<size_t>scalar.text_text, -1),
    "cube_out": (<size_t>extension.cube_text, -1),
    "vector_out": (<size_t>extension.vector_text, -1),
    "halfvec_out": (<size_t>extension.halfvec_text, -1),
    "sparsevec_out": (<size_t>extension.sparsevec_text, -1),
}

# int2vector, oidvector: arrays that print in a way of their own
cdef frozenset VECTORS = frozenset({22, 30})
# of 12 or 16 bytes, by major
cdef uint32_t ACLITEM = 1033


cdef dict DATE_STYLES = {
    "ISO": DATE_STYLE_ISO,
    "SQL": DATE_STYLE_SQL,
    "Postgres": DATE_STYLE_POSTGRES,
    "German": DATE_STYLE_GERMAN,
}
cdef dict INTERVAL_STYLES = {
    "postgres": INTERVAL_STYLE_POSTGRES,
    "postgres_verbose": INTERVAL_STYLE_POSTGRES_VERBOSE,
    "sql_standard": INTERVAL_STYLE_SQL_STANDARD,
    "iso_8601": INTERVAL_STYLE_ISO_8601,
}


cdef class TextContext:
    """Settings in C form.

    Args:
        settings: a ``pg.text_settings.TextSettings``.
    """

    def __cinit__(self, settings):
        cdef size_t i
        table = transitions(settings.time_zone)
        self.settings = settings
        if settings.encoding != "utf-8":
            self.codec = settings.encoding.encode("ascii")
            self.values.codec = PyBytes_AS_STRING(self.codec)
        self.transitions = <ZoneTransition*>calloc(len(table), sizeof(ZoneTransition))
        if self.transitions == NULL:
            raise MemoryError
        self.names = []
        for i, (start, offset, name) in enumerate(table):
            self.names.append(name.encode())
            self.transitions[i].name = PyBytes_AS_STRING(self.names[i])
            self.transitions[i].start = start
            self.transitions[i].offset = offset
        self.values.transitions = self.transitions
        datetime.forget_date(&self.printed)
        self.values.printed = &self.printed
        self.values.transition_count = len(table)
        self.values.server_version_num = settings.server_version_num
        self.values.extra_float_digits = settings.extra_float_digits
        self.values.bytea_escape = settings.bytea_output == "escape"
        self.values.date_style = DATE_STYLES[settings.date_style]
        self.values.day_first = settings.date_order == "DMY"
        self.values.interval_style = INTERVAL_STYLES[settings.interval_style]

    def __dealloc__(self):
        free(self.transitions)


# Writers that call Python, and the one for types that nobody knows.

cdef int codec_write(const TypeOutput* type, const uint8_t* data, size_t size,
                     ByteBuffer* out) except -1 nogil:
    """Write by a codec written in Python: *codec* is (function that returns bytes, settings, type
    name).
    """
    with gil:
        function, settings, name = <tuple>type.codec
        payload = PyBytes_FromStringAndSize(<const char*>data, size)
        try:
            written = bytes(function(payload, settings))
        except DecodingError:
            raise
        except Exception as error:
            raise DecodingError(f"a value of type {name} is malformed: {error!r}") from error
        return put_bytes(out, PyBytes_AS_STRING(written), PyBytes_GET_SIZE(written))


def encoding_text(codec):
    """Return a text codec's function with its text as bytes."""
    return lambda payload, settings: codec(payload, settings).encode(errors="surrogateescape")


cdef int raw_text(const TypeOutput* type, const uint8_t* data, size_t size,
                  ByteBuffer* out) except -1 nogil:
    """Print the payload in hexadecimal; *codec* is the prefix."""
    with gil:
        prefix = <bytes>type.codec
        put_bytes(out, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))
    return scalar.put_hex(out, data, size)


cdef class CompiledType:
    """A type's writer with what it needs."""

    def __cinit__(self):
        self.owned = []

    def __dealloc__(self):
        free(self.memory)


cdef class TypeCompiler:
    """Compiles the types of one relation descriptor.

    Args:
        context: the settings to print under.
        types: ``RelationDescriptor.types``.
    """

    def __cinit__(self, TextContext context not None, types):
        self.context = context
        self.types = types
        self.compiled = {}
        self.in_progress = set()

    cpdef CompiledType column(self, column):
        """Return the compiled type of a ColumnDescriptor.

        Raises:
            DecodingError: the column and its type contradict each other.
        """
        cdef CompiledType compiled = self.compile(column.type_oid)
        if compiled is None:
            return self.fallback(self.types.get(column.type_oid), column.type_oid, column.length,
                                 column.align)
        if compiled.output.length != column.length:
            raise DecodingError(
                f"column {column.name!r} has values of {column.length} bytes, "
                f"its type {column.type_oid} of {compiled.output.length}"
            )
        return compiled

    cdef CompiledType compile(self, uint32_t oid):
        """Return the compiled type *oid*; None if not even its length is known."""
        cdef CompiledType compiled = self.compiled.get(oid)
        if compiled is not None:
            return compiled
        if oid in self.in_progress:
            raise DecodingError(f"type {oid} contains itself")
        descriptor = self.types.get(oid)
        if descriptor is not None and descriptor.kind == "d":
            self.in_progress.add(oid)
            compiled = self.compile(descriptor.base_oid)
            self.in_progress.discard(oid)
            if compiled is None:
                compiled = self.fallback(descriptor, oid, descriptor.length, descriptor.align)
            self.compiled[oid] = compiled
            return compiled
        known = self.built_in(oid)
        compiled = self.begin()
        if known is not None:
            compiled.output.write = <text_writer><size_t>known[0]
            compiled.output.length = known[1]
            compiled.output.align = ALIGN_BYTES[known[2]]
            if descriptor is not None and descriptor.length != known[1]:
                raise DecodingError(
                    f"built-in type {descriptor.name} ({oid}) has length {descriptor.length} "
                    f"instead of {known[1]}"
                )
        elif descriptor is None:
            return None
        else:
            compiled.output.length = descriptor.length
            compiled.output.align = ALIGN_BYTES[descriptor.align]
            self.in_progress.add(oid)
            if not self.fill(compiled, descriptor):
                compiled = self.fallback(descriptor, oid, descriptor.length, descriptor.align)
            self.in_progress.discard(oid)
        self.compiled[oid] = compiled
        return compiled

    cdef CompiledType begin(self):
        """Return a compiled type without a writer yet."""
        cdef CompiledType compiled = CompiledType()
        compiled.output.settings = &self.context.values
        # The context must outlive what points into it.
        compiled.owned.append(self.context)
        return compiled

    cdef CompiledType fallback(self, object descriptor, uint32_t oid, int length, str align):
        """Return a compiled type that prints values raw."""
        cdef CompiledType compiled = self.begin()
        prefix = raw_prefix(descriptor, oid).encode(self.context.settings.encoding,
                                                    "surrogateescape")
        compiled.owned.append(prefix)
        compiled.output.write = raw_text
        compiled.output.length = length
        compiled.output.align = ALIGN_BYTES[align]
        compiled.output.codec = <void*>prefix
        return compiled

    cdef object built_in(self, uint32_t oid):
        """Return (writer, attlen, attalign) of a built-in type, None if it is not printed in C."""
        return BUILT_IN.get(oid)

    cdef int fill(self, CompiledType target, object descriptor) except -1:
        """Set the writer of a type that is no built-in scalar; return 0 if there is none for it."""
        known = EXTENSIONS.get(descriptor.output)
        if known is not None and known[1] == descriptor.length:
            target.output.write = <text_writer><size_t>known[0]
            return 1
        if descriptor.oid == ACLITEM:
            self.fill_enum(target, descriptor)
            target.output.write = container.acl_text
            return 1
        if descriptor.kind == "b" and descriptor.enum_labels:
            self.fill_enum(target, descriptor)
            target.output.write = container.object_text
            return 1
        codec = find_codec(descriptor.oid, descriptor.output)
        if codec is not None:
            self.fill_codec(target, descriptor, encoding_text(codec))
            return 1
        return self.fill_container(target, descriptor)

    cdef int fill_codec(self, CompiledType target, object descriptor, object function) except -1:
        """Have values written by *function*, from the payload as bytes and the settings to
        bytes.
        """
        state = (function, self.context.settings, f"{descriptor.schema}.{descriptor.name}")
        target.owned.append(state)
        target.output.codec = <void*>state
        target.output.write = codec_write
        return 0

    cdef int fill_container(self, CompiledType target, object descriptor) except -1:
        """Set what a type made of other types needs, and its writer; return 0 if it is none, or
        can't be printed.
        """
        cdef CompiledType element
        cdef str kind = descriptor.kind
        if descriptor.is_array or descriptor.oid in VECTORS:
            element = self.compile(descriptor.element_oid)
            target.output.write = container.array_text
            if descriptor.oid in VECTORS:
                target.output.write = container.vector_text
            target.output.delimiter = ord(descriptor.delimiter)
        elif kind == "r":
            element = self.compile(descriptor.subtype_oid)
            target.output.write = container.range_text
        elif kind == "m":
            element = self.compile(descriptor.subtype_oid)
            # Its range must be one that is taken apart as such.
            if element is not None and element.output.element == NULL:
                return 0
            target.output.write = container.multirange_text
        elif kind == "e":
            return self.fill_enum(target, descriptor)
        elif kind == "c":
            return self.fill_record(target, descriptor)
        else:
            return 0
        if element is None:
            return 0
        target.owned.append(element)
        target.output.element = &element.output
        return 1

    cdef int fill_enum(self, CompiledType target, object descriptor) except -1:
        cdef EnumLabel* labels
        cdef size_t i
        labels = <EnumLabel*>calloc(len(descriptor.enum_labels) + 1, sizeof(EnumLabel))
        if labels == NULL:
            raise MemoryError
        target.memory = labels
        target.output.labels = labels
        target.output.count = len(descriptor.enum_labels)
        target.output.write = container.enum_text
        for i, (oid, label) in enumerate(sorted(descriptor.enum_labels)):
            text = label.encode(self.context.settings.encoding, "surrogateescape")
            target.owned.append(text)
            labels[i].oid = oid
            labels[i].text = <const uint8_t*>PyBytes_AS_STRING(text)
            labels[i].size = PyBytes_GET_SIZE(text)
        return 1

    cdef int fill_record(self, CompiledType target, object descriptor) except -1:
        cdef CompiledType field
        cdef size_t i
        cdef const TypeOutput** fields
        cdef uint32_t* oids
        # Attributes that still have their type need not say their length and alignment twice.
        attributes = []
        compiled = []
        for attribute in descriptor.attributes:
            field = None
            if not attribute.dropped:
                field = self.compile(attribute.type_oid)
                if field is None:
                    return 0
                if attribute.length not in (0, field.output.length):
                    raise DecodingError(
                        f"attribute {attribute.name!r} of {descriptor.schema}.{descriptor.name} "
                        f"has values of {attribute.length} bytes, its type {attribute.type_oid} of "
                        f"{field.output.length}"
                    )
                attribute = AttributeLength(attribute.name, field.output.length, field.output.align)
            attributes.append(attribute)
            compiled.append(field)
        layout = Layout(attributes)
        # One block: the fields, and behind them their types' oids.
        fields = <const TypeOutput**>calloc(len(compiled) + 1,
                                            sizeof(TypeOutput*) + sizeof(uint32_t))
        if fields == NULL:
            raise MemoryError
        target.memory = fields
        target.owned.append(layout)
        target.owned.append(compiled)
        oids = <uint32_t*>(fields + len(compiled) + 1)
        for i, attribute in enumerate(descriptor.attributes):
            field = compiled[i]
            fields[i] = NULL if field is None else &field.output
            oids[i] = 0 if field is None else attribute.type_oid
        target.output.fields = fields
        target.output.field_oids = oids
        target.output.layout = (<Layout>layout).attributes
        target.output.count = len(compiled)
        target.output.write = container.record_text
        return 1


cdef class AttributeLength:
    """What Layout asks of an attribute."""
    cdef readonly object name
    cdef readonly int length
    cdef readonly str align
    cdef readonly bint dropped

    def __cinit__(self, name, int length, int align):
        self.name = name
        self.length = length
        self.align = {1: "c", 2: "s", 4: "i", 8: "d"}[align]
        self.dropped = False


cdef bytes written(CompiledType compiled, const uint8_t[::1] payload):
    """Return what the writer of a compiled type makes of one value."""
    cdef ByteBuffer out
    cdef uint8_t none = 0
    cdef const uint8_t* data = &payload[0] if payload.shape[0] else &none
    if compiled.output.length > 0 and payload.shape[0] != compiled.output.length:
        raise DecodingError(f"a value of {payload.shape[0]} bytes instead of "
                            f"{compiled.output.length}")
    out.data = NULL
    out.size = out.capacity = 0
    try:
        compiled.output.write(&compiled.output, data, payload.shape[0], &out)
        return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
    finally:
        release(&out)


def datum_text(column, types, settings, const uint8_t[::1] payload not None):
    """Return the text of one value as bytes: for tests and tools, kernels call the writers.

    Args:
        column: the ColumnDescriptor of the value.
        types: ``RelationDescriptor.types``.
        settings: a ``pg.text_settings.TextSettings``.
        payload: the value as a Datum has it: a varlena without its header.

    Raises:
        DecodingError: the value is malformed.
    """
    return written(TypeCompiler(TextContext(settings), types).column(column), payload)
