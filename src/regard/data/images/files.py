"""The names of files: what images end in, and how a model folder says how they are prepared."""

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
PREPROCESSING = "preprocessor_config.json"
