"""What verify, bench and sweep found, as one page: for a browser, for paper, or as Markdown."""
