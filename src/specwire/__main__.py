"""`python -m specwire`: the same command line, for an environment whose scripts are not on the PATH."""

import sys

if not sys.flags.safe_path and sys.path:
    sys.path.pop(0)  # the working directory, whose modules are none of ours

from specwire.cli import main

if __name__ == "__main__":
    main()
