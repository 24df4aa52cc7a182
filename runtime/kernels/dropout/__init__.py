"""Dropout whose draws are a function of a key and a call number, on every target the same bits."""
