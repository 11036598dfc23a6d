"""Keeps a lake registered in a catalog while a job is at work
(:mod:`spillway.lake.catalogs.registration`).

No trouble of the catalog ends a batch: it is told once as a warning, kept beside the table, and
tried again after :data:`_AGAIN_S`, then twice as long, up to :data:`_AGAIN_LONGEST_S`.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from spillway.lake.catalogs.registration import Registration, said
from spillway.lake.job.table_watch import TableWatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spillway.storage.place import LakePath

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 5.0
_AGAIN_S: Final = 10.0
_AGAIN_LONGEST_S: Final = 300.0


class RegistrationWatch(TableWatch):
    """See the module."""

    def __init__(self, path: LakePath, address: str, prefix: str, spark: SparkSession) -> None:
        super().__init__(path, "spillway-lake-catalog", _PAUSE_S)
        self._make = partial(Registration, path, address, prefix, spark)
        self._registration: Registration | None = None
        #: what is amiss; "": nothing is
        self._told = ""
        self._again_s, self._again_at = _AGAIN_S, 0.0

    def _begin(self) -> None:
        self._keep(everything=True)

    def _round(self) -> None:
        if self._told:
            if self._is_time_again():
                self._keep(everything=True)
            return
        with self._lock:
            something = bool(self._changed)
        if something:
            self._keep(everything=False)

    def _end(self) -> None:
        if not self._told or self._is_time_again():
            self._keep(everything=True)

    def _is_time_again(self) -> bool:
        return time.monotonic() >= self._again_at

    def _keep(self, *, everything: bool) -> None:
        changed = self._taken()
        try:
            if self._registration is None:
                self._registration = self._make()
            done = self._registration.keep(None if everything else changed)
            trouble = next(iter(done.troubles.values()), "")
            for key, name in done.made.items():
                _log.info("%s is registered as %s", key, name)
        except Exception as error:  # noqa: BLE001 - no batch is to end for it
            trouble = said(error)
            self.changed(changed)
        if not trouble:
            self._told, self._again_s = "", _AGAIN_S
            return
        if trouble != self._told:
            _log.warning("tables could not be registered, which is tried again: %s", trouble)
        self._told = trouble
        self._again_at = time.monotonic() + self._again_s
        self._again_s = min(2 * self._again_s, _AGAIN_LONGEST_S)
