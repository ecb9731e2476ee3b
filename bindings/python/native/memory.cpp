// Memory that all ranks of the host map, as an object that lends it by the buffer protocol and frees it when it ends.
#include <pybind11/pybind11.h>

#include "failure.h"
#include "world.h"

namespace farandole_python {
namespace py = pybind11;

namespace {

// Outlives its world: whoever looks into it keeps the object, and the object keeps the memory.
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

}  // namespace

void bind_memory(py::module_& module) {
  py::class_<Memory>(module, "Memory", py::buffer_protocol())
      .def(py::init<const World&, std::size_t>())
      .def_buffer(&Memory::view);
}

}  // namespace farandole_python
