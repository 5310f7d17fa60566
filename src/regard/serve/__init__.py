"""The server: models behind a web page, our own API and two standard ones."""
