// The functions of libfarandole_jax.so: the handlers that XLA calls, and those that Python calls.
//
// XLA is a part of jaxlib, and of TensorFlow. The library links nothing of either: jaxlib's headers declare a table of
// functions that XLA passes to each call.
// Releases with the same FFI version may have tables of different lengths, so that a function at its end is used only
// where the table contains it.
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "collective.h"
#include "failures.h"
#include "ffi.h"
#include "groups.h"

namespace farandole_jax {
namespace {

std::optional<fdl_dtype> dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::PRED:
      return FDL_BOOL;
    case ffi::DataType::U8:
      return FDL_UINT8;
    case ffi::DataType::S8:
      return FDL_INT8;
    case ffi::DataType::U16:
      return FDL_UINT16;
    case ffi::DataType::S16:
      return FDL_INT16;
    case ffi::DataType::U32:
      return FDL_UINT32;
    case ffi::DataType::S32:
      return FDL_INT32;
    case ffi::DataType::U64:
      return FDL_UINT64;
    case ffi::DataType::S64:
      return FDL_INT64;
    case ffi::DataType::F16:
      return FDL_FLOAT16;
    case ffi::DataType::BF16:
      return FDL_BFLOAT16;
    case ffi::DataType::F32:
      return FDL_FLOAT32;
    case ffi::DataType::F64:
      return FDL_FLOAT64;
    case ffi::DataType::F8E4M3FN:
      return FDL_FLOAT8_E4M3;
    case ffi::DataType::F8E5M2:
      return FDL_FLOAT8_E5M2;
    default:
      return std::nullopt;
  }
}

// The number of the device on which a program runs. 0 where jaxlib's table has no function for it (before 0.6).
int device_ordinal(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context) {
  constexpr std::size_t kNeeded = offsetof(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get) + sizeof(void*);
  if (api->struct_size < kNeeded) return 0;
  XLA_FFI_DeviceOrdinal_Get_Args arguments{};
  arguments.struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE;
  arguments.ctx = context;
  if (XLA_FFI_Error* error = api->XLA_FFI_DeviceOrdinal_Get(&arguments)) {
    ffi::internal::DestroyError(api, error);
    return 0;
  }
  return arguments.device_ordinal;
}

std::span<const int64_t> shape_of(const ffi::AnyBuffer& buffer) {
  return {buffer.dimensions().begin(), buffer.dimensions().size()};
}

// Adds the operations of all buffers but a token. The text of a problem, or empty.
std::string add_operations(Collective& collective, const ffi::RemainingArgs& inputs, const ffi::RemainingRets& outputs,
                           std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto input = inputs.get<ffi::AnyBuffer>(i);
    auto output = outputs.get<ffi::AnyBuffer>(i);
    if (input.has_error() || output.has_error()) return "an input or a result is not a buffer";
    const std::optional<fdl_dtype> dtype = dtype_of(input->element_type());
    if (!dtype) return "input " + std::to_string(i) + " has a type that farandole does not reduce";
    const fdl_tensor tensor{.data = input->untyped_data(),
                            .dtype = *dtype,
                            .ndim = static_cast<int>(input->dimensions().size()),
                            .shape = input->dimensions().begin(),
                            .device_kind = FDL_DEVICE_CPU,
                            .device_index = 0,
                            .stream = nullptr};
    const ffi::AnyBuffer result = **output;
    collective.add(tensor, result.untyped_data(), result.size_bytes(), shape_of(result));
  }
  return {};
}

// A token only makes XLA run two calls in order. It passes through the call.
void pass_token(const ffi::RemainingArgs& inputs, const ffi::RemainingRets& outputs, std::size_t index) {
  const auto input = inputs.get<ffi::AnyBuffer>(index);
  auto output = outputs.get<ffi::AnyBuffer>(index);
  if (input.has_error() || output.has_error()) return;
  if ((*output)->untyped_data() != input->untyped_data()) {
    std::memcpy((*output)->untyped_data(), input->untyped_data(), input->size_bytes());
  }
}

template <Framework framework>
ffi::Future run(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context, ffi::RemainingArgs inputs,
                ffi::RemainingRets outputs, std::string_view names, int64_t group, int32_t kind, int32_t op,
                int32_t root, double prescale, double postscale, int32_t priority, ffi::Span<const int64_t> splits,
                int32_t tokens) {
  ffi::Promise promise;
  ffi::Future future(promise);
  Collective collective({.names = names,
                         .group = group,
                         .kind = static_cast<fdl_kind>(kind),
                         .op = static_cast<fdl_reduce_op>(op),
                         .root = root,
                         .prescale = prescale,
                         .postscale = postscale,
                         .priority = priority,
                         .splits = {splits.begin(), splits.size()},
                         .framework = framework});
  collective.set_device(device_ordinal(api, context));
  if (inputs.size() != outputs.size() || inputs.size() < static_cast<std::size_t>(tokens) + 1) {
    fail(promise, framework, FDL_INTERNAL, "a call has other numbers of inputs and results");
    return future;
  }
  const std::size_t count = inputs.size() - static_cast<std::size_t>(tokens);
  if (tokens > 0) pass_token(inputs, outputs, count);
  if (std::string problem = add_operations(collective, inputs, outputs, count); !problem.empty()) {
    fail(promise, framework, FDL_INVALID_ARGUMENT, std::move(problem));
  } else {
    collective.start(promise);
  }
  return future;
}

// Calls the handler of all collectives. XLA keeps the buffers in place until the returned future ends. The names of the
// attributes are those of farandole/jax/compiled.py and farandole/tensorflow/xla.py.
template <Framework framework>
XLA_FFI_Error* call(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::Bind()
                                  .Ctx<ffi::FfiApi>()
                                  .Ctx<ffi::FfiExecutionContext>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("names")
                                  .Attr<int64_t>("group")
                                  .Attr<int32_t>("kind")
                                  .Attr<int32_t>("op")
                                  .Attr<int32_t>("root")
                                  .Attr<double>("prescale")
                                  .Attr<double>("postscale")
                                  .Attr<int32_t>("priority")
                                  .Attr<ffi::Span<const int64_t>>("splits")
                                  .Attr<int32_t>("tokens")
                                  .To(&run<framework>)
                                  .release();
  return handler->Call(frame);
}

// TensorFlow has no function in Python that registers a handler, as jax.ffi has. This table entry does the same.
std::string register_in_tensorflow(const XLA_FFI_Api* api, std::string_view target) {
  XLA_FFI_Error* error = ffi::Ffi::RegisterStaticHandler(api, target, "Host", &call<Framework::kTensorFlow>);
  if (error == nullptr) return {};
  std::string text = ffi::internal::GetErrorMessage(api, error);
  ffi::internal::DestroyError(api, error);
  return text;
}

}  // namespace
}  // namespace farandole_jax

#define FARANDOLE_JAX_API __attribute__((visibility("default")))

// The handler of JAX, which Python registers.
extern "C" FARANDOLE_JAX_API XLA_FFI_Error* farandole_jax_collective(XLA_FFI_CallFrame* frame) {
  return farandole_jax::call<farandole_jax::Framework::kJax>(frame);
}

// Registers the handler in the XLA of TensorFlow, whose table of functions is `api`, as the custom call `target`.
// Returns NULL, or why XLA refuses it: a text that is valid until the next call.
extern "C" FARANDOLE_JAX_API const char* farandole_jax_register_in_tensorflow(const void* api, const char* target) {
  static std::string refusal;
  refusal = farandole_jax::register_in_tensorflow(static_cast<const XLA_FFI_Api*>(api), target);
  return refusal.empty() ? nullptr : refusal.c_str();
}

// Gives a group a number; NULL removes the number.
extern "C" FARANDOLE_JAX_API void farandole_jax_set_group(int64_t number, fdl_group* group) {
  farandole_jax::Groups::instance().set(number, group);
}

// See Failures::describe.
extern "C" FARANDOLE_JAX_API size_t farandole_jax_failure(size_t index, char* text, size_t capacity) {
  return farandole_jax::Failures::instance().describe(index, text, capacity);
}
