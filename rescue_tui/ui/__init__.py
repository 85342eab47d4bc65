"""The Textual screens; the only importer of Textual."""
