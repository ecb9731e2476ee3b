// The argument checks word their texts so that each names the argument, the given number, the needed number and the
// remedy.
#include "capi/arguments.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "farandole/farandole.h"

namespace fdl::capi {
namespace {

std::string counted(std::size_t count, const char* one, const char* several) {
  return std::to_string(count) + " " + (count == 1 ? one : several);
}

}  // namespace

Fault fault_of_size(const char* structure, std::size_t struct_size) {
  constexpr std::size_t kMost = 65536;
  if (struct_size > sizeof(std::size_t) && struct_size <= kMost) return std::nullopt;
  return std::string(structure) + ".struct_size is " + std::to_string(struct_size) +
         ": set it to the size of the structure, or call its fdl_..._init function first";
}

// The index is checked against the devices that exist when the device is opened.
Fault fault_of_place(int device_kind, int device_index) {
  if (device_kind != FDL_DEVICE_CPU && device_kind != FDL_DEVICE_CUDA) {
    return "device kind " + std::to_string(device_kind) + " is not supported; copy the tensor to the CPU";
  }
  if (device_index < 0) return "device index " + std::to_string(device_index) + " does not exist";
  return std::nullopt;
}

Fault fault_of_count(std::size_t count, std::size_t element_bytes) {
  if (count <= static_cast<std::size_t>(std::numeric_limits<int64_t>::max()) / element_bytes) return std::nullopt;
  return "count " + std::to_string(count) + " is more than memory can hold (was it negative?)";
}

Fault fault_of_elements(const char* name, std::size_t stated, std::size_t needed) {
  if (stated == FDL_UNSTATED || stated == needed) return std::nullopt;
  return std::string(name) + " has " + counted(stated, "element", "elements") + ", and the operation needs " +
         std::to_string(needed) + "; pass an array of that size";
}

Fault fault_of_length(const char* name, std::size_t stated, int ranks) {
  if (stated == FDL_UNSTATED || stated == static_cast<std::size_t>(ranks)) return std::nullopt;
  return std::string(name) + " has " + counted(stated, "entry", "entries") + ", and there are " +
         counted(static_cast<std::size_t>(ranks), "rank", "ranks") + "; pass one entry for each rank";
}

// Addresses are compared as integers: comparing pointers into different arrays is undefined.
bool overlap(const Extent& a, const Extent& b) {
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.data);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.data);
  return a.bytes > 0 && b.bytes > 0 && a_begin < b_begin + b.bytes && b_begin < a_begin + a.bytes;
}

Fault fault_of_overlap(const Extent& input, const Extent& output) {
  if (!overlap(input, output)) return std::nullopt;
  const auto begin =
      std::max(reinterpret_cast<std::uintptr_t>(input.data), reinterpret_cast<std::uintptr_t>(output.data));
  const auto end = std::min(reinterpret_cast<std::uintptr_t>(input.data) + input.bytes,
                            reinterpret_cast<std::uintptr_t>(output.data) + output.bytes);
  return std::string(input.name) + " (" + std::to_string(input.bytes) + " bytes) and " + output.name + " (" +
         std::to_string(output.bytes) + " bytes) share " + std::to_string(end - begin) +
         " bytes; pass separate arrays, or the same array for both to work in place";
}

}  // namespace fdl::capi
