"""The DuckDB catalog: its tables, and every query on them."""
