"""A check that Horovod itself is not installed: two distributions cannot share one package."""

from importlib import metadata


def refuse_beside_horovod():
    """ImportError if a distribution named `horovod` is installed too."""
    try:
        other = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"farandole-horovod cannot work beside Horovod {other.version} (in {other.locate_file('')}): both are the "
        "package 'horovod', and their files share one folder. Remove both and install the one you want: pip "
        "uninstall -y horovod farandole-horovod && pip install farandole-horovod"
    )


def not_offered(module, instead):
    """The ImportError of a module of Horovod that is not offered; `instead` is what to use."""
    return ImportError(f"farandole-horovod does not offer {module}: {instead}", name=module)
