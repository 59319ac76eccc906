"""Caps on what is read from the web's files, apart from the code that needs NumPy and Pillow."""

MAX_PIXELS = 89_478_485  # a quarter gigabyte of RGB; Pillow warns above it and raises at twice as much
MAX_FILE_BYTES = 512 * 1024 * 1024
