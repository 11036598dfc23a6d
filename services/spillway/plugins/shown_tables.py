"""Options of the plugin ``arrow`` that say which tables and columns its readers see: partitioned
tables as one, columns left out or masked. Whoever copies tables reads them by the same rules.
"""

from __future__ import annotations

from typing import Any

from spillway.plugins import masks as column_masks
from spillway.plugins import partition_roots


def shown_tables(options: dict[str, str]) -> dict[str, Any]:
    """Take those out of *options*; return what of
    :class:`~spillway.plugins.arrow_schema.SchemaOptions` they make.

    Raises:
        InvalidOption: a value is none.
    """
    masks = column_masks.parse(options.pop(column_masks.OPTION, None))
    secret = options.pop(column_masks.SECRET_OPTION, "")
    column_masks.check_secret(masks, secret)
    roots = partition_roots.parse_roots(options.pop(partition_roots.OPTION, None))
    return {"masks": masks, "mask_secret": secret.encode(), "partition_roots": roots}
