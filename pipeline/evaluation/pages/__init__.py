"""Figures as one HTML page."""
