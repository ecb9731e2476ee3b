// Conversion of the library's texts to Python.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

namespace farandole_python {

// A str for a text of the library. It may quote a path or a variable whose bytes are not UTF-8; such a byte becomes
// \xNN, where pybind11's own conversion would raise UnicodeDecodeError. The GIL must be held.
inline pybind11::str text_of(std::string_view text) {
  PyObject* const made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (made == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(made);
}

}  // namespace farandole_python
