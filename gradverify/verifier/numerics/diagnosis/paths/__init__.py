"""Forward as a graph whose local derivatives can be taken otherwise, one at a time."""
