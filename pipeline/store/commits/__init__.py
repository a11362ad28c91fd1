"""The transactions that change identities, faces or embeddings."""
