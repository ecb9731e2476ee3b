// View: the memory of a Python object, whoever owns it: buffer protocol, DLPack, or (pointer, dtype, shape) by hand.
#pragma once

#include <farandole/farandole.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace farandole_python {

struct View {
  void* data = nullptr;
  fdl_dtype dtype = FDL_UINT8;
  std::vector<int64_t> shape;
  pybind11::object owner;  // keeps the memory where it is

  size_t count() const {
    size_t product = 1;
    for (int64_t extent : shape) product *= static_cast<size_t>(extent);
    return product;
  }
};

enum class Access { kRead, kWrite };

// Throws InvalidArgumentError for what is no tensor, is not contiguous, has a type that no operation takes, lies on a
// device, or is read-only where Access::kWrite is asked.
View view_of(pybind11::handle object, Access access);

}  // namespace farandole_python
