"""Who is this face? The one exact score, the index, exact search, sequential grouping."""
