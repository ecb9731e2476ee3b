// farandole._native: the C API for Python. It depends on no framework.
#include <farandole/farandole.h>
#include <pybind11/pybind11.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "text.h"
#include "view.h"
#include "world.h"

namespace farandole_python {
namespace py = pybind11;

namespace {

// `describe` copies what fits and returns the size of the whole text, including the final 0.
template <typename Describe>
py::str whole_text(Describe describe) {
  std::string text(describe(nullptr, 0), '\0');
  describe(text.data(), text.size());
  return text_of(text.c_str());
}

// (pointer, dtype, shape, owner, place): `owner` keeps the memory alive; `place` is None for the CPU.
py::tuple memory_of(py::object tensor, bool writable) {
  View view = view_of(tensor, writable ? Access::kWrite : Access::kRead);
  py::tuple shape(view.shape.size());
  for (size_t i = 0; i < view.shape.size(); ++i) shape[i] = view.shape[i];
  py::object owner = view.owner ? view.owner : py::none();
  return py::make_tuple(reinterpret_cast<uintptr_t>(view.data), static_cast<int>(view.dtype), shape, owner,
                        view.place.to_python());
}

py::str explain(const std::string& collective, int ranks, size_t bytes, const std::string& algorithm) {
  return whole_text([&](char* text, size_t capacity) {
    return fdl_explain(collective.c_str(), ranks, bytes, algorithm.c_str(), text, capacity);
  });
}

py::dict named(std::initializer_list<std::pair<const char*, int>> codes) {
  py::dict numbers;
  for (const auto& [name, number] : codes) numbers[name] = number;
  return numbers;
}

// The enumerators of the header by enumeration and name, so that no number is written twice.
py::dict codes() {
  py::dict all;
  all["dtype"] = named({{"UINT8", FDL_UINT8},
                        {"INT8", FDL_INT8},
                        {"UINT16", FDL_UINT16},
                        {"INT16", FDL_INT16},
                        {"UINT32", FDL_UINT32},
                        {"INT32", FDL_INT32},
                        {"UINT64", FDL_UINT64},
                        {"INT64", FDL_INT64},
                        {"FLOAT16", FDL_FLOAT16},
                        {"BFLOAT16", FDL_BFLOAT16},
                        {"FLOAT32", FDL_FLOAT32},
                        {"FLOAT64", FDL_FLOAT64},
                        {"BOOL", FDL_BOOL},
                        {"FLOAT8_E4M3", FDL_FLOAT8_E4M3},
                        {"FLOAT8_E5M2", FDL_FLOAT8_E5M2}});
  all["compression"] = named({{"NONE", FDL_COMPRESSION_NONE},
                              {"INT8", FDL_COMPRESSION_INT8},
                              {"INT4", FDL_COMPRESSION_INT4},
                              {"FLOAT8_E4M3", FDL_COMPRESSION_FLOAT8_E4M3},
                              {"FLOAT8_E5M2", FDL_COMPRESSION_FLOAT8_E5M2},
                              {"BFLOAT16", FDL_COMPRESSION_BFLOAT16}});
  all["reduce_op"] = named({{"SUM", FDL_SUM},
                            {"AVERAGE", FDL_AVERAGE},
                            {"MIN", FDL_MIN},
                            {"MAX", FDL_MAX},
                            {"PRODUCT", FDL_PRODUCT},
                            {"BIT_AND", FDL_BIT_AND},
                            {"BIT_OR", FDL_BIT_OR},
                            {"BIT_XOR", FDL_BIT_XOR},
                            {"LOGICAL_AND", FDL_LOGICAL_AND},
                            {"LOGICAL_OR", FDL_LOGICAL_OR},
                            {"LOGICAL_XOR", FDL_LOGICAL_XOR},
                            {"USER", FDL_USER},
                            {"ADASUM", FDL_ADASUM}});
  all["kind"] = named({{"ALLREDUCE", FDL_NAMED_ALLREDUCE},
                       {"ALLGATHER", FDL_NAMED_ALLGATHER},
                       {"BROADCAST", FDL_NAMED_BROADCAST},
                       {"ALLTOALL", FDL_NAMED_ALLTOALL},
                       {"REDUCE_SCATTER", FDL_NAMED_REDUCE_SCATTER},
                       {"BARRIER", FDL_NAMED_BARRIER}});
  all["collective"] = named({{"ALLREDUCE", FDL_ALLREDUCE},
                             {"REDUCE", FDL_REDUCE},
                             {"BROADCAST", FDL_BROADCAST},
                             {"ALLGATHER", FDL_ALLGATHER},
                             {"REDUCE_SCATTER", FDL_REDUCE_SCATTER},
                             {"ALLTOALL", FDL_ALLTOALL},
                             {"GATHER", FDL_GATHER},
                             {"SCATTER", FDL_SCATTER},
                             {"BARRIER", FDL_BARRIER},
                             {"SEND", FDL_SEND},
                             {"RECV", FDL_RECV}});
  all["device_kind"] = named({{"CPU", FDL_DEVICE_CPU}, {"CUDA", FDL_DEVICE_CUDA}});
  return all;
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
  module.def("codes", &fdl::codes);
  module.def("dtype_name", [](int dtype) { return fdl_dtype_name(static_cast<fdl_dtype>(dtype)); });
  module.def("memory_of", &fdl::memory_of);
  module.def("config", [] { return fdl::whole_text(&fdl_config_describe); });
  module.def("explain", &fdl::explain);
}
