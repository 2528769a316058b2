"""Importing the user's module and finding what in it has a backward."""
