// The program `farandole` calls the library, which contains the command. An installation has the code once.
#include "cli/program.h"

int main(int argc, char** argv) { return fdl_program_main(argc, argv); }
