"""Error rates and their intervals."""
