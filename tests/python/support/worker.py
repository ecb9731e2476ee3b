"""One rank of a test job: worker.py FILE CHECK,CHECK OUTCOMES [ARGUMENTS]. Runs checks of a module until one fails."""

import importlib
import json
import os
import sys
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def main():
    file, checks, outcomes = sys.argv[1:4]
    folder, name = os.path.split(file)
    sys.path.insert(1, folder)  # after the folder of this file
    module = importlib.import_module(name.removesuffix(".py"))
    with open(outcomes, "w", buffering=1) as file:
        for check in checks.split(","):
            try:
                getattr(module, check)()
            except BaseException:
                text = traceback.format_exc()
                print(f"{check} failed:\n{text}", flush=True)
                file.write(json.dumps([check, text]) + "\n")
                return 1
            file.write(json.dumps([check, None]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
