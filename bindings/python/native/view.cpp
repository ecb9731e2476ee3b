// One function for each protocol that describes a Python object's memory.
#include "view.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "dlpack.h"
#include "exceptions.h"

namespace farandole_python {
namespace py = pybind11;

namespace {

std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

[[noreturn]] void refuse(const std::string& text) { raise_error(FDL_INVALID_ARGUMENT, text); }

std::optional<fdl_dtype> integer_dtype(size_t bytes, bool is_signed) {
  switch (bytes) {
    case 1:
      return is_signed ? FDL_INT8 : FDL_UINT8;
    case 2:
      return is_signed ? FDL_INT16 : FDL_UINT16;
    case 4:
      return is_signed ? FDL_INT32 : FDL_UINT32;
    case 8:
      return is_signed ? FDL_INT64 : FDL_UINT64;
    default:
      return std::nullopt;
  }
}

std::optional<fdl_dtype> real_dtype(size_t bytes) {
  switch (bytes) {
    case 2:
      return FDL_FLOAT16;
    case 4:
      return FDL_FLOAT32;
    case 8:
      return FDL_FLOAT64;
    default:
      return std::nullopt;
  }
}

// A format of the struct module: one letter, optionally after a byte order character that matches this machine.
std::optional<fdl_dtype> format_dtype(const char* format, size_t bytes) {
  std::string text = format ? format : "B";
  if (!text.empty() && std::string("@=<|").find(text[0]) != std::string::npos) text.erase(0, 1);
  if (text.size() != 1) return std::nullopt;
  char letter = text[0];
  if (letter == '?') return FDL_BOOL;
  if (letter == 'c') return FDL_UINT8;
  if (std::string("bhilqn").find(letter) != std::string::npos) return integer_dtype(bytes, true);
  if (std::string("BHILQN").find(letter) != std::string::npos) return integer_dtype(bytes, false);
  if (std::string("efd").find(letter) != std::string::npos) return real_dtype(bytes);
  return std::nullopt;
}

bool is_row_major(int ndim, const int64_t* shape, const int64_t* strides, int64_t unit) {
  if (!strides) return true;
  int64_t expected = unit;
  for (int i = 0; i < ndim; ++i)
    if (shape[i] == 0) return true;
  for (int i = ndim - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// The View owns a Py_buffer. Empty if the object does not provide one.
std::optional<View> view_of_buffer(py::handle object, Access access) {
  auto* buffer = new Py_buffer{};
  int flags = PyBUF_FORMAT | PyBUF_STRIDES | (access == Access::kWrite ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), buffer, flags) != 0) {
    delete buffer;
    PyErr_Clear();
    return std::nullopt;
  }
  py::capsule owner(buffer, [](void* held) {
    PyBuffer_Release(static_cast<Py_buffer*>(held));
    delete static_cast<Py_buffer*>(held);
  });
  auto dtype = format_dtype(buffer->format, static_cast<size_t>(buffer->itemsize));
  if (!dtype && buffer->format != nullptr && std::string(buffer->format).find('Z') != std::string::npos)
    refuse("complex numbers are not supported; pass the array as real numbers, such as x.view(x.real.dtype)");
  if (!dtype) refuse("elements of format '" + std::string(buffer->format) + "' are not supported");
  View view{buffer->buf, *dtype, {buffer->shape, buffer->shape + buffer->ndim}, owner};
  std::vector<int64_t> strides(buffer->strides, buffer->strides + buffer->ndim);
  if (!is_row_major(buffer->ndim, view.shape.data(), strides.data(), buffer->itemsize))
    refuse("the array must be contiguous (row-major); pass numpy.ascontiguousarray(...)");
  return view;
}

std::optional<fdl_dtype> dlpack_dtype(dlpack::DataType type) {
  if (type.lanes != 1) return std::nullopt;
  switch (type.code) {
    case dlpack::kInt:
      return integer_dtype(type.bits / 8, true);
    case dlpack::kUInt:
      return integer_dtype(type.bits / 8, false);
    case dlpack::kFloat:
      return real_dtype(type.bits / 8);
    case dlpack::kBfloat:
      return FDL_BFLOAT16;
    case dlpack::kBool:
      return FDL_BOOL;
    case dlpack::kFloat8E4M3fn:
      return FDL_FLOAT8_E4M3;
    case dlpack::kFloat8E5M2:
      return FDL_FLOAT8_E5M2;
    default:
      return std::nullopt;
  }
}

// Streams as both protocols number them: 1 is the legacy default stream, which synchronizes with all others.
constexpr int kDefaultStream = 1;

// The producer orders its earlier work before the stream that is passed here. Producers older than version 1 of the
// standard reject `max_version` with a TypeError.
py::object dlpack_capsule(py::handle object) {
  py::dict options;
  if (py::hasattr(object, "__dlpack_device__")) {
    const auto device = object.attr("__dlpack_device__")().cast<std::pair<int, int>>();
    if (device.first == FDL_DEVICE_CUDA) options["stream"] = kDefaultStream;
  }
  try {
    return object.attr("__dlpack__")(**options, py::arg("max_version") = py::make_tuple(dlpack::kMajor, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return object.attr("__dlpack__")(**options);
}

// The tensor of a capsule that has not been consumed, and whether it is read-only.
std::pair<const dlpack::Tensor*, bool> tensor_of(py::handle capsule, py::handle object) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    auto* versioned = static_cast<dlpack::Versioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (versioned->major != dlpack::kMajor)
      refuse(type_name(object) + " gives DLPack " + std::to_string(versioned->major) + "." +
             std::to_string(versioned->minor) + ", which is not supported; version 1 is");
    return {&versioned->tensor, versioned->flags & 1};
  }
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor"))
    refuse(type_name(object) +
           ".__dlpack__() returned no DLPack tensor, or one that was consumed already; it must "
           "return a new capsule each time");
  return {&static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor, false};
}

// The capsule is kept and not renamed: its own destructor releases the tensor when the View is destroyed.
View view_of_dlpack(py::handle object, Access access) {
  py::object capsule = dlpack_capsule(object);
  const auto [tensor, read_only] = tensor_of(capsule, object);
  Place place;
  if (tensor->device.kind == FDL_DEVICE_CUDA)
    place = {FDL_DEVICE_CUDA, tensor->device.index, reinterpret_cast<void*>(uintptr_t{kDefaultStream})};
  else if (tensor->device.kind != 1 && tensor->device.kind != 3)
    refuse("the tensor lies on a device of kind " + std::to_string(tensor->device.kind) +
           ", which is not supported; bring it to the CPU first");
  if (read_only && access == Access::kWrite) refuse(type_name(object) + " is read-only; it cannot take the result");
  if (tensor->dtype.code == dlpack::kComplex)
    refuse("complex numbers are not supported; pass the tensor as real numbers, such as torch.view_as_real(x)");
  auto dtype = dlpack_dtype(tensor->dtype);
  if (!dtype) refuse("the elements of this " + type_name(object) + " have a type that is not supported");
  if (!is_row_major(tensor->ndim, tensor->shape, tensor->strides, 1))
    refuse("the tensor must be contiguous (row-major)");
  return {static_cast<char*>(tensor->data) + tensor->byte_offset,
          *dtype,
          {tensor->shape, tensor->shape + tensor->ndim},
          capsule,
          place};
}

// The description of an array on a CUDA device by CuPy, Numba and PyTorch, version 3. It lacks the device index, which
// comes from __dlpack_device__.
View view_of_cuda_array(py::handle object, Access access) {
  const auto facts = object.attr("__cuda_array_interface__").cast<py::dict>();
  const auto type = facts["typestr"].cast<std::string>();
  const auto data = facts["data"].cast<py::tuple>();
  if (data[1].cast<bool>() && access == Access::kWrite)
    refuse(type_name(object) + " is read-only; it cannot take the result");
  View view;
  view.data = reinterpret_cast<void*>(data[0].cast<uintptr_t>());
  for (py::handle extent : facts["shape"]) view.shape.push_back(extent.cast<int64_t>());
  const size_t bytes = type.size() > 2 ? std::stoul(type.substr(2)) : 0;
  const char kind = type.size() > 1 ? type[1] : '?';
  std::optional<fdl_dtype> dtype;
  if (kind == 'b' && bytes == 1) dtype = FDL_BOOL;
  if (kind == 'i' || kind == 'u') dtype = integer_dtype(bytes, kind == 'i');
  if (kind == 'f') dtype = real_dtype(bytes);
  if (!dtype || type[0] == '>') refuse("elements of type '" + type + "' are not supported");
  view.dtype = *dtype;
  if (facts.contains("strides") && !facts["strides"].is_none()) {
    std::vector<int64_t> strides;
    for (py::handle stride : facts["strides"]) strides.push_back(stride.cast<int64_t>());
    const auto ndim = static_cast<int>(view.shape.size());
    if (!is_row_major(ndim, view.shape.data(), strides.data(), static_cast<int64_t>(bytes)))
      refuse("the array must be contiguous (row-major)");
  }
  view.owner = py::reinterpret_borrow<py::object>(object);
  view.place.kind = FDL_DEVICE_CUDA;
  if (py::hasattr(object, "__dlpack_device__"))
    view.place.index = object.attr("__dlpack_device__")().cast<std::pair<int, int>>().second;
  if (facts.contains("stream") && !facts["stream"].is_none())
    view.place.stream = reinterpret_cast<void*>(facts["stream"].cast<uintptr_t>());
  return view;
}

// The dtype that PyTorch names "torch.float32". FDL_BOOL and the 8-bit reals have other names in farandole.
std::optional<fdl_dtype> torch_dtype(py::handle dtype) {
  std::string name = py::str(dtype).cast<std::string>();
  name.erase(0, name.find('.') + 1);
  for (int code = 0; fdl_dtype_size(static_cast<fdl_dtype>(code)) != 0; ++code) {
    const std::string known = fdl_dtype_name(static_cast<fdl_dtype>(code));
    if (name == known || name == known + "fn") return static_cast<fdl_dtype>(code);
  }
  return std::nullopt;
}

// A tensor of PyTorch on CUDA. Its own protocols do not name the current stream, on which the tensor is used, and
// refuse some types.
View view_of_torch(py::handle object) {
  if (!object.attr("is_contiguous")().cast<bool>())
    refuse("the tensor must be contiguous (row-major); pass tensor.contiguous()");
  const auto dtype = torch_dtype(object.attr("dtype"));
  if (!dtype) refuse("elements of type " + py::str(object.attr("dtype")).cast<std::string>() + " are not supported");
  View view;
  view.data = reinterpret_cast<void*>(object.attr("data_ptr")().cast<uintptr_t>());
  view.dtype = *dtype;
  for (py::handle extent : object.attr("shape")) view.shape.push_back(extent.cast<int64_t>());
  view.owner = py::reinterpret_borrow<py::object>(object);
  const py::object device = object.attr("device");
  const py::object stream = py::module_::import("torch").attr("cuda").attr("current_stream")(device);
  view.place = {FDL_DEVICE_CUDA, device.attr("index").cast<int>(),
                reinterpret_cast<void*>(stream.attr("cuda_stream").cast<uintptr_t>())};
  return view;
}

// (pointer, dtype, shape or count): the caller keeps the memory.
View view_of_pointer(const py::tuple& parts) {
  if (parts.size() != 3) refuse("memory without an object is (pointer, dtype, shape)");
  View view;
  view.data = reinterpret_cast<void*>(parts[0].cast<uintptr_t>());
  view.dtype = static_cast<fdl_dtype>(parts[1].cast<int>());
  if (fdl_dtype_size(view.dtype) == 0) refuse("there is no dtype " + std::to_string(parts[1].cast<int>()));
  if (py::isinstance<py::int_>(parts[2]))
    view.shape = {parts[2].cast<int64_t>()};
  else
    for (py::handle extent : py::object(parts[2])) view.shape.push_back(extent.cast<int64_t>());
  return view;
}

// NumPy's arrays of ml_dtypes provide no buffer. A view of their bits as integers does.
std::optional<View> view_of_extension_dtype(py::handle object, Access access) {
  if (!py::hasattr(object, "dtype") || !py::hasattr(object, "view")) return std::nullopt;
  auto name = py::str(object.attr("dtype")).cast<std::string>();
  std::optional<fdl_dtype> dtype;
  if (name == "bfloat16") dtype = FDL_BFLOAT16;
  if (name == "float8_e4m3fn") dtype = FDL_FLOAT8_E4M3;
  if (name == "float8_e5m2") dtype = FDL_FLOAT8_E5M2;
  if (!dtype) return std::nullopt;
  auto view = view_of_buffer(object.attr("view")(*dtype == FDL_BFLOAT16 ? "uint16" : "uint8"), access);
  if (view) view->dtype = *dtype;
  return view;
}

// Whether an array of another library than NumPy, whose arrays are the most frequent ones, describes memory of a
// device.
bool has_device_memory(py::handle object) {
  return std::string_view(Py_TYPE(object.ptr())->tp_name) != "numpy.ndarray" &&
         py::hasattr(object, "__cuda_array_interface__");
}

}  // namespace

py::object Place::to_python() const {
  if (!on_device()) return py::none();
  return py::make_tuple(static_cast<int>(kind), index, reinterpret_cast<uintptr_t>(stream));
}

Place Place::from_python(py::handle place) {
  if (place.is_none()) return {};
  const auto [kind, index, stream] = place.cast<std::tuple<int, int, uintptr_t>>();
  return {static_cast<fdl_device_kind>(kind), index, reinterpret_cast<void*>(stream)};
}

View view_of(py::handle object, Access access) {
  if (py::isinstance<py::tuple>(object)) return view_of_pointer(py::reinterpret_borrow<py::tuple>(object));
  // The arrays of CuPy have the buffer protocol too, but refuse it, or give memory of the device by it.
  const bool has_buffer = PyObject_CheckBuffer(object.ptr());
  if (has_buffer && !has_device_memory(object)) {
    if (auto view = view_of_buffer(object, access)) return *view;
    if (auto view = view_of_extension_dtype(object, access)) return *view;
    refuse(type_name(object) + (access == Access::kWrite ? " cannot be written to; give an array that owns its memory"
                                                         : " gives no plain memory; give a numeric array"));
  }
  if (!has_buffer && py::hasattr(object, "is_cuda") && object.attr("is_cuda").cast<bool>())
    return view_of_torch(object);
  // Before DLPack, because it names the stream on which the array is used.
  if (py::hasattr(object, "__cuda_array_interface__")) return view_of_cuda_array(object, access);
  if (py::hasattr(object, "__dlpack__")) return view_of_dlpack(object, access);
  refuse(type_name(object) +
         " is no tensor: it has neither the buffer protocol nor __dlpack__ nor __cuda_array_interface__");
}

}  // namespace farandole_python
