// View describes the memory of a Python object, which it reads through the buffer protocol, DLPack,
// __cuda_array_interface__, or from a tuple (pointer, dtype, shape).
#pragma once

#include <farandole/farandole.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace farandole_python {

// The device of memory, and the stream on which its owner uses it.
struct Place {
  fdl_device_kind kind = FDL_DEVICE_CPU;
  int index = 0;
  void* stream = nullptr;

  bool on_device() const { return kind != FDL_DEVICE_CPU; }
  // None for the CPU, else (kind, index, stream).
  pybind11::object to_python() const;
  static Place from_python(pybind11::handle place);
};

struct View {
  void* data = nullptr;
  fdl_dtype dtype = FDL_UINT8;
  std::vector<int64_t> shape;
  pybind11::object owner;  // keeps the memory alive
  Place place;

  size_t count() const {
    size_t product = 1;
    for (int64_t extent : shape) product *= static_cast<size_t>(extent);
    return product;
  }
};

enum class Access { kRead, kWrite };

// Throws InvalidArgumentError if the object is not a tensor, is not contiguous, has an unsupported type, is on an
// unsupported device, or is read-only although `access` is kWrite.
View view_of(pybind11::handle object, Access access);

}  // namespace farandole_python
