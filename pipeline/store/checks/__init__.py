"""Checks of a store, and repairs."""
