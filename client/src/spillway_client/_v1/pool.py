"""Message classes out of serialised descriptors, in a pool that nothing else uses.

What protoc generates checks that the protobuf library is as new as protoc; descriptors alone need
no more than the runtime that reads them.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import message_factory, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

_POOL: Final = DescriptorPool()
_POOL.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)


def define(module: dict[str, Any], file: str, serialized: bytes) -> None:
    """Put the message classes of *file*, whose FileDescriptorProto is *serialized*, into
    *module*.
    """
    _POOL.AddSerializedFile(serialized)
    for name, descriptor in _POOL.FindFileByName(file).message_types_by_name.items():
        module[name] = message_factory.GetMessageClass(descriptor)
