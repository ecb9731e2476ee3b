// Memory of the library as Python objects that free it when they are destroyed: memory that all ranks of the host map,
// with the buffer protocol, and symmetric memory of a group on its devices, as an array of bytes there.
#include <pybind11/pybind11.h>

#include "exceptions.h"
#include "world.h"

namespace farandole_python {
namespace py = pybind11;

namespace {

// Outlives its world: each view of the memory holds a reference to the object, which owns the memory.
class Memory {
 public:
  Memory(const World& world, std::size_t bytes) : bytes_(bytes) { check(fdl_alloc(world.get(), bytes, &memory_)); }
  ~Memory() { fdl_free(memory_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  py::buffer_info view() const {
    return {memory_, 1, py::format_descriptor<uint8_t>::format(), static_cast<py::ssize_t>(bytes_)};
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_;
};

// Creation is collective over the group.
class DeviceMemory {
 public:
  DeviceMemory(const Group& group, int kind, int index, uintptr_t stream, std::size_t bytes)
      : kind_(kind), index_(index), bytes_(bytes) {
    fdl_group* const native = group.get();
    const Users::User user(group.users());
    const fdl_result made = [&] {
      const py::gil_scoped_release others_run;
      return fdl_device_alloc(native, static_cast<fdl_device_kind>(kind), index, reinterpret_cast<void*>(stream), bytes,
                              &memory_);
    }();
    check(made);
  }
  ~DeviceMemory() {
    const py::gil_scoped_release others_run;  // it may wait for the device
    fdl_free(memory_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  py::dict cuda_array_interface() const {
    py::dict facts;
    facts["shape"] = py::make_tuple(bytes_);
    facts["typestr"] = "|u1";
    facts["data"] = py::make_tuple(reinterpret_cast<uintptr_t>(memory_), false);
    facts["strides"] = py::none();
    facts["version"] = 3;
    return facts;
  }
  py::tuple dlpack_device() const { return py::make_tuple(kind_, index_); }

 private:
  void* memory_ = nullptr;
  int kind_;
  int index_;
  std::size_t bytes_;
};

}  // namespace

void bind_memory(py::module_& module) {
  py::class_<Memory>(module, "Memory", py::buffer_protocol())
      .def(py::init<const World&, std::size_t>())
      .def_buffer(&Memory::view);
  py::class_<DeviceMemory>(module, "DeviceMemory")
      .def(py::init<const Group&, int, int, uintptr_t, std::size_t>())
      .def_property_readonly("__cuda_array_interface__", &DeviceMemory::cuda_array_interface)
      .def("__dlpack_device__", &DeviceMemory::dlpack_device);
}

}  // namespace farandole_python
