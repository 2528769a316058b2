"""The mathematics: problems, derivatives with error bounds, comparisons. Knows no rules, specs or screens."""
