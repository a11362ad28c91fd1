"""Transactions that change identities, faces or embeddings."""
