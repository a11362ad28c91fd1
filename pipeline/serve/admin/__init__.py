"""Commands on a store that a server holds."""
