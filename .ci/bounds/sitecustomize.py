"""Bounds each check of the Python suite: kafka-python 2.0.2 looks for a group's coordinator without an end.

Python imports this at its start (PYTHONPATH). A check ends with its printed verdict; one that takes longer than
CHECK_LIMIT seconds gets an exception, which the suite reports as its failure.
"""
import builtins
import os
import signal
import sys

LIMIT = int(os.environ.get("CHECK_LIMIT", "0"))


def over(*_):
    raise TimeoutError(f"over {LIMIT} s")


def arm():
    signal.setitimer(signal.ITIMER_REAL, LIMIT, 5)  # again, should a library swallow the first


def main():
    plain = builtins.print

    def print_and_arm(*args, **kwargs):
        plain(*args, **kwargs)
        arm()

    signal.signal(signal.SIGALRM, over)
    builtins.print = print_and_arm
    arm()


if LIMIT and sys.orig_argv[-1].endswith("python_checks.py"):
    main()
