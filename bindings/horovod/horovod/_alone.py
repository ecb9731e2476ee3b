"""Two distributions cannot share one package: says so before anything is mixed up."""

from importlib import metadata


def refuse_beside_horovod():
    """ImportError where a distribution named `horovod` is installed too."""
    try:
        other = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"farandole-horovod cannot work beside Horovod {other.version} (in {other.locate_file('')}): both are the "
        "package 'horovod', and their files lie among each other. Remove both and install the one you want: pip "
        "uninstall -y horovod farandole-horovod && pip install farandole-horovod"
    )
