"""Writes modules.svg: the modules of the library in their layers. Run it in this folder: python modules.py"""

from pathlib import Path

import svg

WIDTH = 980
# name, x, y, width, height, kind, lines below the name
BOXES = [
    ("bindings/", 10, 44, 470, 54, "edge", ["python, torch, keras, horovod: they include include/farandole only"]),
    ("capi", 10, 130, 470, 54, "shell", ["farandole.h to runtime; the only ABI"]),
    ("cli", 500, 130, 470, 54, "shell", ["the command: run/ elastic/ doctor/ bench/ tune/ ..., and module simulate"]),
    ("runtime", 10, 216, 960, 72, "shell",
     ["named/ named operations, handles     progress/ token and thread     device/ work on GPUs",
      "telemetry/ metrics, timeline     lifecycle/ start, groups, assemble.cpp (the only file that names transports)"]),
    ("agree", 10, 320, 190, 188, "pure",
     ["negotiation/ rules, fusion,", "   stalls, group launch", "order/ locked and", "   optimistic order,",
      "   repetition detector", "session/ root and member", "wire/ control.fbs,", "   request cache"]),
    ("engine", 220, 320, 240, 78, "shell",
     ["communicator", "host/ executor, schedules", "device/ NCCL or staging"]),
    ("transports/", 480, 320, 180, 78, "keeper", ["shm   tcp   loopback", "mpi ofi nccl (at run time)"]),
    ("cuda", 680, 320, 90, 78, "keeper", ["driver (at", "run time),", "kernels/"]),
    ("bootstrap", 790, 320, 180, 78, "shell", ["launchers/ rendezvous/", "coordinator/ topology/"]),
    ("algorithms", 220, 430, 240, 78, "pure",
     ["ring, trees, butterflies, ...:", "one file each; catalog.cpp", "choice/ model and tables"]),
    ("contract", 480, 430, 490, 78, "shell",
     ["headers: transport.h, collectives.h, device.h, readiness_flags.h,", "waitable.h, membership.h: what an "
      "implementation promises"]),
    ("data", 10, 540, 190, 54, "shell", ["types, reduction kernels"]),
    ("schedule", 220, 540, 240, 54, "pure", ["steps; proof/ and print/ of them"]),
    ("system", 480, 540, 490, 54, "shell", ["sockets, poller, shared segments, handshake, processes"]),
    ("base", 10, 626, 960, 52, "shell", ["status, config, clock, log, mutex"]),
]  # fmt: skip
# from x, y to x, y; dashed: implements
ARROWS = [
    (245, 98, 245, 130, False), (500, 157, 480, 157, False), (245, 184, 245, 216, False),
    (735, 184, 735, 216, False), (105, 288, 105, 320, False), (340, 288, 340, 320, False), (570, 288, 570, 320, False),
    (725, 288, 725, 320, False), (880, 288, 880, 320, False), (330, 398, 330, 430, False), (455, 398, 495, 430, False),
    (570, 398, 570, 430, True), (725, 398, 725, 430, True), (880, 398, 880, 430, False), (105, 508, 105, 540, False),
    (330, 508, 330, 540, False), (500, 508, 455, 540, False), (725, 508, 725, 540, False), (105, 594, 105, 626, False),
    (340, 594, 340, 626, False), (725, 594, 725, 626, False),
]  # fmt: skip
KINDS = [
    ("pure", "pure: no I/O, clock or threads"),
    ("keeper", "implements the contracts"),
    ("shell", "everything else"),
]


def main():
    body = [svg.text(10, 28, "Modules of farandole: includes point down only", 16, bold=True)]
    for x, (kind, words) in zip((480, 690, 872), KINDS):
        body += [svg.box(x, 17, 14, 14, kind, 2), svg.text(x + 19, 28, words, 11, style="faint")]
    body += [svg.arrow(x1, y1, x2, y2, dashed) for x1, y1, x2, y2, dashed in ARROWS]
    for name, x, y, width, height, kind, lines in BOXES:
        body += [svg.box(x, y, width, height, kind), svg.text(x + 10, y + 19, name, 14, bold=True)]
        body += [svg.text(x + 10, y + 37 + 16 * i, line.replace("   ", "\u2003"), 12) for i, line in enumerate(lines)]
    body += [
        svg.text(10, 700, "Solid arrow: includes. Dashed arrow: implements. runtime reaches transports/ and cuda "
                 "through lifecycle/assemble.cpp alone.", 11, style="faint"),
        svg.text(10, 716, "tests/architecture_test.cpp has the table of the includes that each module may have.", 11,
                 style="faint"),
    ]  # fmt: skip
    Path("modules.svg").write_text(svg.document(WIDTH, 730, body, "Modules of farandole"))


if __name__ == "__main__":
    main()
