"""What distances mean, fitted to labelled photos."""
