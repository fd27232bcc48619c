"""The diagnoses: one file each, registered by being here."""

if __name__ != "specwire.checks":
    raise ImportError(f"import this package as specwire.checks, not as {__name__}")
