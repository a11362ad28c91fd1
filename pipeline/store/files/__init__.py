"""The files of a store: durable writing, shards, pictures, the lock, encryption."""
