"""Records ``services/spillway/pg/euc_tw.txt``: which characters EUC_TW has, and where, as a server
converts UTF8 into it.

    python -m golden.record_euc_tw

Python has no codec of EUC_TW, unlike every other encoding of PostgreSQL's. A line is a row: the
first bytes of its characters, and 94 of these, "?" where there is none. Rows without any are left
out. ``integration/walsender/test_client_encoding.py`` holds each code point against every major.

Source: src/backend/utils/mb/Unicode/utf8_to_euc_tw.map, by way of convert_to
"""

from __future__ import annotations

from pathlib import Path

from harness.cluster import Cluster

_FILE = Path(__file__).parents[2] / "services" / "spillway" / "pg" / "euc_tw.txt"
_CELLS = 94
_FIRST_CELL = 0xA1
_NONE = "?"
_FOUND = """
CREATE FUNCTION pg_temp.found() RETURNS TABLE (code int, data bytea) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 128 .. 196607 LOOP
    CONTINUE WHEN i BETWEEN 55296 AND 57343;
    BEGIN
      code := i; data := convert_to(chr(i), 'EUC_TW'); RETURN NEXT;
    EXCEPTION WHEN untranslatable_character THEN NULL;
    END;
  END LOOP;
END $$
"""


def main() -> None:
    """Ask a server, and write the file."""
    rows: dict[bytes, list[str]] = {}
    with Cluster(18) as cluster, cluster.connect() as connection:
        connection.execute(_FOUND)
        for code, data in connection.execute("SELECT * FROM pg_temp.found()").fetchall():
            row = rows.setdefault(data[:-1], [_NONE] * _CELLS)
            row[data[-1] - _FIRST_CELL] = chr(code)
    lines = (f"{first.hex()} {''.join(row)}\n" for first, row in sorted(rows.items()))
    _FILE.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
