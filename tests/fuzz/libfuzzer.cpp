// The entry points of libFuzzer for the one target that this program is linked with.
//
//   fuzz_NAME --write-seeds FOLDER     writes the target's seeds as files; otherwise libFuzzer's own command line
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "tests/fuzz/targets.h"

namespace {

const fdl::fuzz::Target& target() { return fdl::fuzz::FDL_FUZZ_TARGET; }

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::string_view((*argv)[1]) != "--write-seeds") return 0;
  int number = 0;
  for (const std::string& seed : target().seeds()) {
    std::ofstream file(std::string((*argv)[2]) + "/seed-" + std::to_string(number++), std::ios::binary);
    if (!(file << seed)) std::exit(1);
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  target().run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
