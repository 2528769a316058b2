"""The module that `gradverify demo` verifies: right Functions, and wrong ones on purpose."""
