"""Is speculation worth it, and where does the time go: servers, clients, sweeps, numbers."""
