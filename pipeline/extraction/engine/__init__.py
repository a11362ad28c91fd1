"""The shards of a run through the stages, on this machine."""
