"""The target against its source, as of one LSN, while both go on; and rows mended by key."""
