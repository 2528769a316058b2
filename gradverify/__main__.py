"""`python -m gradverify`."""

from gradverify.cli import main

main()
