"""``format("spillway")``: a slot as a Spark data source."""

from spillway.lake.source.data_source import SpillwayDataSource

__all__ = ["SpillwayDataSource"]
