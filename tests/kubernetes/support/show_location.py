"""A rank that prints the location which its pod gives it, when all ranks have started."""

import os

import farandole

farandole.init()
farandole.barrier()
place = os.environ.get("FARANDOLE_LOCATION", "unset")
if "FARANDOLE_TOPOLOGY" in os.environ:
    with open(os.environ["FARANDOLE_TOPOLOGY"]) as file:
        place = file.read().strip()
print(f"{os.uname().nodename} found {place}", flush=True)
farandole.shutdown()
