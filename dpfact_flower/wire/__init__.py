"""Define and encode the messages between the server and the sites."""
