"""Prints the table of the bindings with their numbers of lines, which is a page of the site.

It is computed from the files each time, so no document contains the numbers.
"""

import os

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Each folder below bindings/ with what it binds. A file belongs to the longest folder that contains it.
FOLDERS = {
    "python/native": "the module `_native`: the C API in Python, arrays, DLPack",
    "python": "`farandole`: groups, collectives on arrays, errors, elastic jobs, the command",
    "python/farandole/doctor": "the checks of `farandole doctor` in Python",
    "python/farandole/integrations": "Kubernetes, Ray, Dask and Spark",
    "torch": "PyTorch: Horovod's interface, and the backend of `torch.distributed`",
    "tensorflow/native": "TensorFlow's ops: kernels by its C API, without its headers",
    "tensorflow": "TensorFlow: Horovod's interface, gradients, functions that XLA compiles",
    "tensorflow/farandole/tensorflow/keras2": "Keras 2",
    "keras": "Keras 3 on TensorFlow, PyTorch and JAX",
    "jax/native": "the handler that XLA calls, for JAX and TensorFlow",
    "jax": "JAX: collectives in compiled functions and outside of them",
    "horovod": "the package `horovod`: its names for the modules above",
    "kubernetes": "the package `farandole-kubernetes`: the sources of the integration, without native code",
    "mpi_preload": "the library that the loader puts before an MPI",
}
_LANGUAGES = {".cpp": "C++", ".h": "C++", ".py": "Python", ".pyi": "Python", ".f90": "other", ".map": "other",
              ".txt": "other", ".toml": "other", ".typed": "other"}  # fmt: skip


def folder_of(path):
    """The key of FOLDERS to which a file below bindings/ belongs. KeyError if it has none."""
    folders = [one for one in FOLDERS if path.startswith(one + "/")]
    if not folders:
        raise KeyError(f"bindings/{path}: add its folder to FOLDERS in docs/tools/binding_sizes.py")
    return max(folders, key=len)


def counts(repository=REPOSITORY):
    """{folder: {language: lines}}. KeyError for a folder or an ending of a file that has no row."""
    counted = {folder: dict.fromkeys(("C++", "Python"), 0) for folder in FOLDERS}
    top = os.path.join(repository, "bindings")
    for place, folders, files in os.walk(top):
        folders[:] = [one for one in folders if one != "__pycache__"]
        for name in files:
            path = os.path.join(place, name)
            language = _LANGUAGES[os.path.splitext(name)[1]]
            mine = counted[folder_of(os.path.relpath(path, top).replace(os.sep, "/"))]
            if language in mine:
                with open(path) as file:
                    mine[language] += sum(1 for _ in file)
    return counted


def page(repository=REPOSITORY):
    """The page: one row for each folder, and the sums."""
    counted = counts(repository)
    rows = ["| `bindings/` | what | C++ | Python |", "|---|---|---|---|"]
    rows += [f"| `{folder}` | {FOLDERS[folder]} | {lines['C++']} | {lines['Python']} |"
             for folder, lines in counted.items()]  # fmt: skip
    sums = [sum(lines[language] for lines in counted.values()) for language in ("C++", "Python")]
    rows.append(f"| all | | {sums[0]} | {sums[1]} |")
    return (
        "# The bindings in lines\n\nAll bindings share one way through the core: names, handles, errors and process "
        "sets are those of\n`bindings/python`. A folder below another is not counted in it. Lines include comments.\n\n"
        + "\n".join(rows)
        + "\n"
    )


if __name__ == "__main__":
    print(page(), end="")
