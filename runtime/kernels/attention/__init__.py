"""Scaled dot-product attention with grouped heads, a window, a soft cap and document boundaries."""
