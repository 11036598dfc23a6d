"""The Spark data source and the job that materialises slots in a lake."""
