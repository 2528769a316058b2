"""The notebook of the documentation: its cells, and what they display when they are run.

python tests/house/documentation/notebook.py    writes docs/notebook.ipynb with what its cells display today
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

FILE = Path(__file__).parents[3] / "docs" / "notebook.ipynb"


def executed() -> nbformat.NotebookNode:
    """The notebook, run from top to bottom by a kernel of its own. Raises where a cell does."""
    notebook = nbformat.read(FILE, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
    return notebook


def displayed(notebook: nbformat.NotebookNode) -> list[str]:
    """What the cells display as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.get("data", {}).get("text/plain") or output.get("text", "") for output in outputs]


if __name__ == "__main__":
    nbformat.write(executed(), FILE)
