// This file checks the images of kernels that the fake libcuda loads, as a driver does: a fat binary needs code for the
// device's architecture, and a driver reads only the compression that its version knows. The kernels themselves are
// built in.
#include <cstring>

#include "tests/fakes/cuda/fake_cuda_machine.h"

namespace fake {
namespace {

using namespace fdl::cuda;

constexpr uint32_t kMagic = 0xBA55ED50;  // of a fat binary; anything else is the text of PTX
constexpr uint16_t kPtx = 1, kElf = 2;
constexpr uint64_t kZstd = 0x8000;
constexpr int kFirstWithZstd = 12040;  // the driver 550.54

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Machine code runs on later minor versions of its major version, PTX on all later ones.
bool runs_on(uint16_t kind, int architecture, int capability) {
  if (kind == kPtx) return architecture <= capability;
  return kind == kElf && architecture / 10 == capability / 10 && architecture <= capability;
}

}  // namespace

Outcome check_image(const void* image, int capability, int driver_version) {
  const auto* at = static_cast<const std::byte*>(image);
  if (read<uint32_t>(at) != kMagic)
    return std::strncmp(static_cast<const char*>(image), ".version", 8) == 0 ? kSuccess : kInvalidImage;
  const std::byte* const end = at + read<uint16_t>(at + 6) + read<uint64_t>(at + 8);
  at += read<uint16_t>(at + 6);
  Outcome outcome = kNoBinaryForGpu;
  while (at < end) {
    // An entry: kind, size of its header, size of its contents, the architecture at 28, flags at 40.
    const auto kind = read<uint16_t>(at);
    const bool fits = runs_on(kind, static_cast<int>(read<uint32_t>(at + 28)), capability);
    const bool is_readable = (read<uint64_t>(at + 40) & kZstd) == 0 || driver_version >= kFirstWithZstd;
    if (fits && is_readable) return kSuccess;
    if (fits) outcome = kInvalidImage;
    at += read<uint32_t>(at + 4) + read<uint64_t>(at + 8);
  }
  return outcome;
}

}  // namespace fake
