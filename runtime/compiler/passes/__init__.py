"""Passes over captured graphs: each module holds one function from a graph to a graph."""
