"""The DuckDB catalog: its tables and all queries."""
