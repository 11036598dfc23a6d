"""The commands of ``spillway lake``."""
