"""The file formats: each opens a header and reads columns; `files.py` chooses among them."""
