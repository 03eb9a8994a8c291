"""Messages between the server and the sites, and their encoding."""
