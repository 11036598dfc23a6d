"""Where messages lie until they are read."""
