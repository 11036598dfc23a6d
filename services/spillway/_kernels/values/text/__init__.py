"""Types' text, as their output functions print it: a module for each family of types."""
