"""What can be wrong with a store, and how it is repaired."""
