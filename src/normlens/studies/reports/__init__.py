"""Reports: results as one HTML page, as Markdown, and as files."""
