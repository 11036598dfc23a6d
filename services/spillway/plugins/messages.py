"""Encoded messages on their way out: what a message buffer is emptied into."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Messages back to back, as an output plugin made them. Arrays are little-endian, one element a message."""

    payload: bytes
    #: u32 array: message i is the next lengths[i] bytes of payload
    lengths: bytes
    #: u64 array: PostgreSQL's lsn column
    lsns: bytes
    #: u32 array
    xids: bytes
    count: int
