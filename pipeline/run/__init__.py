"""A run: from a source to committed shards.

`session` opens the store and resolves the settings. `plan` finds the new rows of the source: `changed_files` compares
the source with the store, `missing` and `moved_source` deal with photos that are not where they were. `stages` extracts
and commits the shards, `page` leaves the report, `run` calls all of them; `dry_run` only plans.
"""
