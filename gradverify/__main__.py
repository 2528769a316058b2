"""`python -m gradverify`, without the current folder on the path: a `random.py` there is none of ours."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]

from gradverify.cli import main

main()
