"""Every wait of an agent turn gets an owner and its own clock."""
