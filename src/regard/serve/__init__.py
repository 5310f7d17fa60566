"""The server: a web page with its own API, and the LibreTranslate and OpenAI APIs."""
