"""Turns photo archives into a store of identities, and answers "who is this?" from it."""
