"""Runs the command line as `python -m toolwire`."""

import sys

from toolwire.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
