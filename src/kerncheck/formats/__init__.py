"""Render a Report as text. Formats print and never decide."""
