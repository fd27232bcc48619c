"""The probes: one file each, registered by being here."""

if __name__ != "specwire.codemods":
    raise ImportError(f"import this package as specwire.codemods, not as {__name__}")
