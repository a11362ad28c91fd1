"""Shards on a Ray cluster.

`engine` gives shards to workers and takes the results back in order, by the rules of `assignments`; `worker` runs on a
node; `connection` joins or starts the cluster. A task is a shard's number and its manifest rows. No pixels pass through
Ray: workers read the photos themselves and write the shards into a `ShardFolder`.
"""
