"""Word alignment from a decoder's maps: links, error rates against gold links, and a report."""
