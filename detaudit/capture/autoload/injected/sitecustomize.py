"""Imported by every Python that has this directory on its PYTHONPATH. Inert unless DETAUDIT_DIR is set.

First hands over to the `sitecustomize` that it hides, if there is one; then starts detaudit. A failure is written
into DETAUDIT_DIR, never raised into the user's program.
"""

import os
import sys


def _chain() -> None:
    """Run the sitecustomize that would have been imported without us."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _start() -> None:
    directory = os.environ.get("DETAUDIT_DIR")
    if not directory:
        return
    try:
        from detaudit.capture.autoload import bootstrap
    except ImportError as error:
        with open(os.path.join(directory, "autoload-error.txt"), "w") as file:
            file.write(
                f"the Python of the command, {sys.executable}, cannot import detaudit ({error}); "
                f"install it there: {sys.executable} -m pip install detaudit\n"
            )
        return
    bootstrap.start()


try:
    _chain()
finally:
    _start()
