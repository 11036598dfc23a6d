# cython: language_level=3
"""Compiling types for the send format (binary): C interface for output plugins' kernels.

The order of use::

    # Once a column of a descriptor:
    compiled = SendCompiler(context, descriptor.types).column(column)
    if compiled is None: ...   # send its text, as PostgreSQL does
    # Once a value, without the GIL:
    compiled.output.write(&compiled.output, datum.data, datum.size, out)

What is written has no length before it: ``put_int32(out, 0)`` before, ``patch_int32`` after
(``scalar.pxd``). Text in it is in UTF-8. A text column of a database in another encoding is
converted by ``send_text.convert_text``.
"""

from spillway._kernels.values.text.output cimport CompiledType, TypeCompiler


cdef class SendCompiler(TypeCompiler):
    """Compiles the types of one relation descriptor for binary output."""
    cdef TypeCompiler texts

    # The compiled type of a column; None when its values are to be sent as text.
    cpdef CompiledType column(self, column)
