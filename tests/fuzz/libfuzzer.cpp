// The entry points of libFuzzer for the one target that this program is linked with.
//
//   fuzz_NAME --write-seeds FOLDER     writes the target's seeds as files; otherwise libFuzzer's own command line
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/targets.h"

namespace {

const fdl::fuzz::Target& target() { return fdl::fuzz::FDL_FUZZ_TARGET; }

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::string_view((*argv)[1]) != "--write-seeds") return 0;
  int number = 0;
  for (const std::string& seed : target().seeds()) {
    std::FILE* file = std::fopen((std::string((*argv)[2]) + "/seed-" + std::to_string(number++)).c_str(), "wb");
    const bool written = file != nullptr && std::fwrite(seed.data(), 1, seed.size(), file) == seed.size();
    if (!written || std::fclose(file) != 0) std::exit(1);
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  target().run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
