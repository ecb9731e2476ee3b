// farandole._native: the C API for Python, and nothing of any framework.
#include <farandole/farandole.h>
#include <pybind11/pybind11.h>

#include <string>

#include "view.h"
#include "world.h"

namespace farandole_python {
namespace py = pybind11;

namespace {

// `describe` copies what fits and returns what the whole needs, its final 0 included.
template <typename Describe>
std::string whole_text(Describe describe) {
  std::string text(describe(nullptr, 0), '\0');
  describe(text.data(), text.size());
  return text.c_str();
}

// (pointer, dtype, shape, owner, place): `owner` keeps the memory where it is; `place` is None for the CPU's.
py::tuple memory_of(py::object tensor, bool writable) {
  View view = view_of(tensor, writable ? Access::kWrite : Access::kRead);
  py::tuple shape(view.shape.size());
  for (size_t i = 0; i < view.shape.size(); ++i) shape[i] = view.shape[i];
  py::object owner = view.owner ? view.owner : py::none();
  return py::make_tuple(reinterpret_cast<uintptr_t>(view.data), static_cast<int>(view.dtype), shape, owner,
                        view.place.to_python());
}

std::string explain(const std::string& collective, int ranks, size_t bytes, const std::string& algorithm) {
  return whole_text([&](char* text, size_t capacity) {
    return fdl_explain(collective.c_str(), ranks, bytes, algorithm.c_str(), text, capacity);
  });
}

}  // namespace
}  // namespace farandole_python

PYBIND11_MODULE(_native, module) {
  namespace fdl = farandole_python;
  fdl::bind_world(module);
  fdl::bind_communicator(module);
  fdl::bind_channel(module);
  fdl::bind_operations(module);
  fdl::bind_memory(module);
  module.def("version", &fdl_version);
  module.def("dtype_name", [](int dtype) { return fdl_dtype_name(static_cast<fdl_dtype>(dtype)); });
  module.def("memory_of", &fdl::memory_of);
  module.def("config", [] { return fdl::whole_text(&fdl_config_describe); });
  module.def("explain", &fdl::explain);
}
