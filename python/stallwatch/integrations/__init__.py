"""Bindings to the libraries that agents are made of: one module each, which imports it lazily."""
