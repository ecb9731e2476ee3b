// Exceptions are made by farandole.errors.make, so that Python alone says which classes there are.
#include "failure.h"

#include <pybind11/pybind11.h>

namespace farandole_python {
namespace py = pybind11;

namespace {

[[noreturn]] void raise_story(const fdl_error& story) {
  py::object error = py::module_::import("farandole.errors")
                         .attr("make")(fdl_result_name(story.code), story.text, story.culprit_rank, story.culprit_host,
                                       story.operation, story.phase, story.group);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

}  // namespace

void raise_last_error() { raise_story(*fdl_last_error()); }

void raise_error(fdl_result code, const std::string& text) {
  fdl_error story{};
  story.code = code;
  story.culprit_rank = -1;
  story.text = text.c_str();
  story.culprit_host = story.operation = story.phase = story.group = "";
  raise_story(story);
}

}  // namespace farandole_python
