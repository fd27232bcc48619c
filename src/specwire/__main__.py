"""`python -m specwire`: the same command line, for an environment whose scripts are not on the PATH."""

from specwire.cli import main

if __name__ == "__main__":
    main()
