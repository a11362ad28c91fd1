"""A store's files: durable writing, shards, pictures, locks, encryption."""
