"""Reports: what experiments found, as one HTML page, as Markdown, and as files."""
