"""Every transaction that changes identities, faces or embeddings."""
