"""Results as files that other programs read: tables, JSON, pictures, pages."""
