"""Identities compared with labels."""
