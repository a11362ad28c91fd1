"""Shards on a Ray cluster.

`engine` gives shards to workers and returns the results in order, by the rules of `scheduling`; `worker` runs on a
node; `connection` joins or starts the cluster. No pixels pass through Ray: workers read the photos and write the shards
into a `ShardFolder`.
"""
