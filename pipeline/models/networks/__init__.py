"""The embedding networks in torch."""
