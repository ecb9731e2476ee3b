# Sphinx: the site of farandole. docs/build.sh puts the sources together and runs it; see docs/tools/site.py.
import os
import re

project = "farandole"
author = "the authors of farandole"
copyright = author
# The version is written once, in the public header.
with open(os.path.join(os.environ["FARANDOLE_REPOSITORY"], "include", "farandole", "farandole.h")) as _file:
    version = release = ".".join(re.findall(r"#define FDL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", _file.read()))

extensions = ["myst_parser"]
myst_enable_extensions = ["fieldlist"]
myst_heading_anchors = 4
exclude_patterns = ["repository"]
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "native"
nitpicky = False
add_module_names = False
toc_object_entries_show_parents = "hide"
smartquotes = False

html_theme = "furo"
html_title = f"farandole {version}"
html_static_path = ["_static"]
html_css_files = ["farandole.css"]
html_copy_source = False
html_show_sphinx = False
