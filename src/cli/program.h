// The entry point of the program `farandole`. The library exports it for the program of the same version alone: it is
// no part of the C API, and its meaning may change in any release.
#pragma once

extern "C" __attribute__((visibility("default"))) int fdl_program_main(int argc, char** argv);
