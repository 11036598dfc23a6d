"""What of the source's tables a lake has: ``<path>/_spillway/shown_tables.json``.

Which partitioned tables are one in it, which columns are left out or masked, and of which tables
rows that are gone stay. The output plugin does the first two
(:mod:`spillway.plugins.partition_roots`, :mod:`spillway.plugins.masks`), so what is masked never
leaves the service, or the source that a load reads. What was said stays, for later runs, loads,
comparisons and replays.

The secret with which values are hashed is not here, but in the environment. What is here is a hash
that tells it from another one, with which nothing would fit together.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spillway.declarations.masks import parse_mask
from spillway.declarations.tables import ALL
from spillway.errors import InvalidOption, InvalidRequest, LakeTableConflict
from spillway.lake.state import column_names
from spillway.plugins import masks as column_masks
from spillway.plugins import partition_roots
from spillway.storage.place import replace_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spillway.storage.place import LakePath

_CHECKED: Final = b"spillway: the secret of a lake's masks"


@dataclass(frozen=True, slots=True)
class ShownTables:
    """See the module."""

    #: ``schema.table``, or ``all``
    partition_root: tuple[str, ...] = ()
    #: by ``schema.table``; an empty list: none any more
    masks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: ``schema.table``, or ``all``: rows that are gone stay in current
    soft_deletes: tuple[str, ...] = ()

    def softly(self, table: str) -> bool:
        """Say whether rows of *table* that are gone stay."""
        return ALL in self.soft_deletes or table in self.soft_deletes


def parse(
    roots: Iterable[str], masks: Iterable[str], soft_deletes: Iterable[str] = ()
) -> ShownTables:
    """Parse what a command is given: tables, TABLE=MASK,…, and tables.

    Raises:
        InvalidRequest: it is none.
    """
    named, soft = tuple(roots), tuple(soft_deletes)
    for option, names in (("--partition-root", named), ("--soft-deletes", soft)):
        for name in names:
            if name != ALL and "." not in name:
                raise InvalidRequest(
                    f"{option} {name!r} is no schema.table", hint="Name schema.table, or all."
                )
    by_table: dict[str, tuple[str, ...]] = {}
    for text in masks:
        table, equals, given = (part.strip() for part in text.partition("="))
        found = tuple(each.strip() for each in given.split(",") if each.strip())
        columns = [None if m is None else m.column for m in map(parse_mask, found)]
        if not equals or "." not in table or table in by_table or None in columns:
            raise InvalidRequest(
                f"--mask of {table or 'no table'} is none",
                hint="--mask 'schema.table=hash(column),null(column),out(column),constant(column:"
                "text)', once for each table; nothing behind = for none.",
            )
        if len(set(columns)) < len(columns):
            raise InvalidRequest(
                f"--mask of {table} names a column twice", hint="Name each column once."
            )
        by_table[table] = found
    return ShownTables(named, by_table, soft)


def settle(path: LakePath, asked: ShownTables) -> None:
    """Make durable what is asked for, and check that the secret is the lake's.

    Raises:
        InvalidRequest: values are hashed, and there is no secret.
        LakeTableConflict: it is another one.
    """
    stored, known = _load(path)
    roots = (*stored.partition_root, *asked.partition_root)
    masks = {**stored.masks, **asked.masks}
    wanted = ShownTables(
        tuple(dict.fromkeys(roots)),
        {table: given for table, given in masks.items() if given},
        tuple(dict.fromkeys((*stored.soft_deletes, *asked.soft_deletes))),
    )
    secret = ""
    if column_masks.hashes(_parsed(wanted)):
        secret = _check_secret(path, known)
    if wanted != stored or secret != known:
        (path / "_spillway").mkdir(parents=True, exist_ok=True)
        value = {
            "partition_root": list(wanted.partition_root),
            "masks": {table: list(given) for table, given in wanted.masks.items()},
            "soft_deletes": list(wanted.soft_deletes),
            "secret": secret,
        }
        replace_json(_file(path), value)


def shown_tables(path: LakePath) -> ShownTables:
    """Return what was said.

    Raises:
        LakeTableConflict: the file is none of this release.
    """
    return _load(path)[0]


def plugin_options(path: LakePath) -> dict[str, str]:
    """Return all that was said of how a lake sees its source, as options of the plugin: over the
    slot's own, and without the secret.

    Raises:
        LakeTableConflict: a file is none of this release.
    """
    shown, _ = _load(path)
    options = column_names.plugin_options(path)
    if shown.partition_root:
        options[partition_roots.OPTION] = json.dumps(shown.partition_root)
    if shown.masks:
        options[column_masks.OPTION] = json.dumps(shown.masks)
    return options


def _check_secret(path: LakePath, known: str) -> str:
    """Return the hash by which the environment's secret is known."""
    secret = os.environ.get(column_masks.ENVIRONMENT, "")
    if len(secret) < column_masks.SECRET_MIN:
        raise InvalidRequest(
            f"columns are to be hashed, and {column_masks.ENVIRONMENT} has no secret of "
            f"{column_masks.SECRET_MIN} characters or more",
            hint=f"Set it in the job's environment and its workers': {column_masks.ENVIRONMENT}="
            "$(openssl rand -hex 32), always the same one.",
        )
    found = column_masks.hashed_bytes(_CHECKED, secret.encode())
    if known and found != known:
        raise LakeTableConflict(
            f"{column_masks.ENVIRONMENT} is not the secret that values of the lake at {path} were "
            "hashed with",
            hint="Set the lake's secret; with another one, fill another lake.",
        )
    return found


def _parsed(shown: ShownTables) -> column_masks.Masks:
    return column_masks.parse(json.dumps({t: list(given) for t, given in shown.masks.items()}))


def _load(path: LakePath) -> tuple[ShownTables, str]:
    """Return what was said, and the hash by which the secret is known."""
    file = _file(path)
    try:
        value = json.loads(file.read_text())
        masks = {str(table): tuple(given) for table, given in value["masks"].items()}
        soft = tuple(value.get("soft_deletes") or ())
        shown = ShownTables(tuple(value["partition_root"]), masks, soft)
        _parsed(shown)
        return shown, str(value["secret"])
    except FileNotFoundError:
        return ShownTables(), ""
    except (AttributeError, KeyError, TypeError, ValueError, InvalidOption) as error:
        raise LakeTableConflict(
            f"{file} can't be read: {error!r}",
            hint="It was written by another release, or is damaged. Removed, the lake takes "
            "columns and partitions as the source has them: give --mask and --partition-root "
            "again.",
        ) from error


def _file(path: LakePath) -> LakePath:
    return path / "_spillway" / "shown_tables.json"
