"""Shards on a Ray cluster.

`engine` gives shards to workers and takes them back in order, by the rules of `assignments`; `worker` is what runs on a
node; `connection` joins or starts the cluster. One task is a shard's number and its manifest rows. No pixels pass
through Ray: workers read the photos themselves, and leave shards in a `ShardFolder`.
"""
