"""The documents as a site: `make docs`."""

from importlib.metadata import version as version_of

project = "capemix"
author = "The capemix authors"
copyright = author
version = release = version_of("capemix")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["README.md"]  # index.md includes it

myst_heading_anchors = 4  # as GitHub makes them
myst_enable_extensions = ["colon_fence"]

autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"

html_theme = "furo"
html_title = "capemix"
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
