// farandole.errors.make creates the exceptions, so that only Python defines their classes.
#include "exceptions.h"

#include <pybind11/pybind11.h>

#include "text.h"

namespace farandole_python {
namespace py = pybind11;

void raise_failure(const Failure& failure) {
  py::object error = py::module_::import("farandole.errors")
                         .attr("make")(fdl_result_name(failure.code), text_of(failure.text), failure.culprit_rank,
                                       text_of(failure.culprit_host), text_of(failure.operation),
                                       text_of(failure.phase), text_of(failure.group));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

void check_interrupted(fdl_result result) {
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  check(result);
}

void raise_last_error() { raise_failure(Failure::last()); }

void raise_error(fdl_result code, const std::string& text) { raise_failure(Failure::of(code, text)); }

}  // namespace farandole_python
