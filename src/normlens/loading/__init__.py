"""Loading: names, folders, objects of other libraries, adapters and quantised weights."""
