// View: the memory of a Python object, whoever owns it: buffer protocol, DLPack, __cuda_array_interface__, or (pointer,
// dtype, shape) by hand.
#pragma once

#include <farandole/farandole.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace farandole_python {

// Where memory lies, and the stream on which its owner works with it.
struct Place {
  fdl_device_kind kind = FDL_DEVICE_CPU;
  int index = 0;
  void* stream = nullptr;

  bool on_device() const { return kind != FDL_DEVICE_CPU; }
  // None for the CPU's memory, else (kind, index, stream): as Python hands it back.
  pybind11::object to_python() const;
  static Place from_python(pybind11::handle place);
};

struct View {
  void* data = nullptr;
  fdl_dtype dtype = FDL_UINT8;
  std::vector<int64_t> shape;
  pybind11::object owner;  // keeps the memory where it is
  Place place;

  size_t count() const {
    size_t product = 1;
    for (int64_t extent : shape) product *= static_cast<size_t>(extent);
    return product;
  }
};

enum class Access { kRead, kWrite };

// Throws InvalidArgumentError for what is no tensor, is not contiguous, has a type that no operation takes, lies on
// another device than CUDA's, or is read-only where Access::kWrite is asked.
View view_of(pybind11::handle object, Access access);

}  // namespace farandole_python
