"""The cookiecutter template of an adapter, as package data."""
