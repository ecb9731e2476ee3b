// Converts arguments from Python. A value that does not fit is an error of farandole that names the argument.
#pragma once

#include <pybind11/pybind11.h>

#include <cstring>
#include <string>

#include "exceptions.h"

namespace farandole_python {

// `value` as a number of type T. The GIL must be held.
template <typename T>
T number_of(pybind11::handle value, const char* name) {
  try {
    return value.cast<T>();
  } catch (const pybind11::cast_error&) {
    raise_error(FDL_INVALID_ARGUMENT, std::string(name) + " is " + pybind11::repr(value).cast<std::string>() +
                                          ", which is not a number in the range of this argument");
  }
}

// `value` as the name of an operation: text without NUL, which would end it for the other ranks.
inline std::string name_of_operation(pybind11::handle value) {
  const auto refuse = [&](const char* why) {
    raise_error(FDL_INVALID_ARGUMENT,
                "the name " + pybind11::repr(value).cast<std::string>() + " of an operation " + why);
  };
  std::string name;
  try {
    name = value.cast<std::string>();
  } catch (const pybind11::cast_error&) {
    refuse("cannot be encoded as UTF-8");
  }
  if (name.find('\0') != std::string::npos) refuse("contains a NUL character");
  return name;
}

// The same without a copy; valid as long as `value`.
inline const char* borrowed_name(PyObject* value) {
  Py_ssize_t size = 0;
  const char* const name = PyUnicode_AsUTF8AndSize(value, &size);
  if (name != nullptr && std::strlen(name) == static_cast<std::size_t>(size)) return name;
  PyErr_Clear();
  name_of_operation(value);  // raises
  return nullptr;
}

}  // namespace farandole_python
