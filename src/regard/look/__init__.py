"""Recorded attention as figures, as one offline web page, as JSON and in the terminal."""
