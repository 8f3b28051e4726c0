"""Where models come from: names, folders, the hub, and models that pip installs."""
