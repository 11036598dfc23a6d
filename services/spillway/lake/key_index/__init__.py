"""Where the rows of current tables are: an index of keys on the job's disk."""
