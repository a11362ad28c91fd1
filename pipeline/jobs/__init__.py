"""What the command line offers, as functions."""
