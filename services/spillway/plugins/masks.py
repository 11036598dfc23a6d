"""Columns that a reader of the plugin ``arrow`` doesn't get as they are.

The option ``masks`` is a JSON object of masks by ``schema.table``, each ``kind(column)``::

    {"shop.customers": ["hash(email)", "null(phone)", "constant(name:somebody)", "out(photo)"]}

===================  =============================================================================
``out(c)``           the column is not there
``null(c)``          it is null
``constant(c:text)``  it is that text
``hash(c)``          it is HMAC-SHA256 of what PostgreSQL prints, in hexadecimal digits, with the
                     option ``mask_secret`` as the key; null stays null. Equal values have equal
                     hashes, in every table
===================  =============================================================================

They are applied where a table's batches are planned, so a value that is masked is in no message, no
old key, no default of a column and no error. Rows can't be told by columns that are left out, null
or constant: a plan whose key has one says so (``masked_key`` of the relation's metadata), and who
merges by keys refuses the table.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spillway.declarations.masks import Mask, parse_mask
from spillway.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Mapping

#: where consumers find the secret: not among options, which others read
ENVIRONMENT: Final = "SPILLWAY_LAKE_MASK_SECRET"
OPTION: Final = "masks"
SECRET_OPTION: Final = "mask_secret"  # noqa: S105 - its name
#: characters
SECRET_MIN: Final = 16

#: by table, then by column
Masks = dict[str, dict[str, Mask]]


def parse(text: str | None) -> Masks:
    """Parse the option's value.

    Raises:
        InvalidOption: it is none; the message has nothing of a value that a constant has.
    """
    if not text:
        return {}
    masks: Masks = {}
    try:
        given: Mapping[str, list[str]] = json.loads(text)
        for table, of_table in given.items():
            found = [parse_mask(each) for each in of_table]
            by_column = {each.column: each for each in found if each is not None}
            if len(by_column) != len(found):
                raise ValueError(table)  # noqa: TRY301 - one message for all that is wrong with it
            masks[table] = by_column
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidOption(
            f'parameter "{OPTION}" is no object of masks by schema.table',
            hint='Give {"schema.table": ["hash(column)", "null(column)", "out(column)", '
            '"constant(column:text)"]}, each column once.',
            option=OPTION,
        ) from error
    return masks


def hashes(masks: Masks) -> bool:
    """Say whether any of *masks* needs the secret."""
    return any(mask.kind == "hash" for of in masks.values() for mask in of.values())


def with_secret(options: Mapping[str, str]) -> dict[str, str]:
    """Return the plugin's options with the secret of this process's environment, if they need
    one.
    """
    if OPTION not in options or SECRET_OPTION in options or not hashes(parse(options[OPTION])):
        return dict(options)
    secret = os.environ.get(ENVIRONMENT, "")
    return {**options, SECRET_OPTION: secret} if secret else dict(options)


def check_secret(masks: Masks, secret: str) -> None:
    """Refuse hashes without a secret: whoever has a list of values would know them all.

    Raises:
        InvalidOption: there is one.
    """
    if not secret and hashes(masks):
        raise InvalidOption(
            f'masks that hash need the parameter "{SECRET_OPTION}"',
            hint="Give a secret of 16 characters or more, the same for as long as hashes are to be "
            "compared.",
            option=SECRET_OPTION,
        )


def hashed(values: pa.Array, secret: bytes) -> pa.Array:
    """Return texts' hashes; each distinct text of the array is hashed once."""
    distinct = values.dictionary_encode()
    texts = distinct.dictionary.cast(pa.binary()).to_pylist()
    hashes = pa.array([hashed_bytes(text, secret) for text in texts], pa.utf8())
    return hashes.take(distinct.indices)


def hashed_bytes(text: bytes, secret: bytes) -> str:
    """Return the hash of one text."""
    import hmac  # noqa: PLC0415 - OpenSSL with it, for those who hash

    return hmac.digest(secret, text, "sha256").hex()
