# cython: language_level=3
"""Compiling types for text output: C interface for output plugins' kernels."""

from libc.stdint cimport uint8_t, uint32_t

from spillway._kernels.values.type cimport PrintedDate, TextSettings, TypeOutput, ZoneTransition


cdef class TextContext:
    """Settings in C form; made once a plugin instance."""
    cdef TextSettings values
    cdef PrintedDate printed
    cdef readonly object settings
    cdef bytes codec
    cdef ZoneTransition* transitions
    cdef list names


cdef class CompiledType:
    """A type's writer with what it needs. ``&compiled.output`` is valid as long as the object
    lives.
    """
    cdef TypeOutput output
    # Python objects that ``output`` points into.
    cdef list owned
    cdef void* memory


cdef class TypeCompiler:
    """Compiles the types of one relation descriptor."""
    cdef TextContext context
    cdef object types
    cdef dict compiled
    cdef set in_progress

    # The compiled type of a column; its length agrees with the column's.
    cpdef CompiledType column(self, column)
    cdef CompiledType compile(self, uint32_t oid)
    cdef CompiledType begin(self)
    cdef CompiledType fallback(self, object descriptor, uint32_t oid, int length, str align)
    cdef object built_in(self, uint32_t oid)
    cdef int fill(self, CompiledType target, object descriptor) except -1
    cdef int fill_codec(self, CompiledType target, object descriptor, object function) except -1
    cdef int fill_container(self, CompiledType target, object descriptor) except -1
    cdef int fill_enum(self, CompiledType target, object descriptor) except -1
    cdef int fill_record(self, CompiledType target, object descriptor) except -1


# One value as a compiled type writes it.
cdef bytes written(CompiledType compiled, const uint8_t[::1] payload)
