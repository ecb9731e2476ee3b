// These functions check arguments for ordered and named operations. Each returns nothing, or the fault as the rest of a
// sentence that the caller begins with the operation's name.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace fdl::capi {

using Fault = std::optional<std::string>;

// A memory range of the caller, with the argument's name for the error.
struct Extent {
  const char* name;
  const void* data;
  std::size_t bytes;
};

// The struct_size of a structure that the caller must have filled with its fdl_..._init function. No version of a
// structure comes near 64 KiB; a larger size is memory that was not initialized.
Fault fault_of_size(const char* structure, std::size_t struct_size);
// The device kind and index of a tensor.
Fault fault_of_place(int device_kind, int device_index);
// A count of elements of so many bytes each that no memory can hold.
Fault fault_of_count(std::size_t count, std::size_t element_bytes);
// `stated`: how many elements the caller's array has, or FDL_UNSTATED; `needed`: how many the operation uses.
Fault fault_of_elements(const char* name, std::size_t stated, std::size_t needed);
// `stated`: how many entries an array with one entry a rank has, or FDL_UNSTATED.
Fault fault_of_length(const char* name, std::size_t stated, int ranks);
// True if two ranges have bytes in common; empty ranges never have.
bool overlap(const Extent& a, const Extent& b);
// A fault if the two ranges overlap. The caller handles the permitted in-place layouts before.
Fault fault_of_overlap(const Extent& input, const Extent& output);

}  // namespace fdl::capi
