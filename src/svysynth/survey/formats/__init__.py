"""The file formats: each opens a header, and reads and writes columns; `survey/files.py` lists them."""
