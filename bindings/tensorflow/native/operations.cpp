// All ops of this library, one row each, and their registration when the library is loaded.
//
// tf.load_op_library("libfarandole_tensorflow.so") loads it and makes a Python function for each op.
#include <iterator>
#include <string>
#include <utility>

#include "attributes.h"
#include "call.h"
#include "data_types.h"
#include "facts.h"
#include "shapes.h"
#include "tensorflow_api.h"

namespace farandole_tensorflow {

namespace {

// Stateless ops may run in any order and at the same time: a graph orders stateful ones, so that two ranks with other
// orders would wait for each other. TensorFlow would merge equal stateless ops, which their names prevent, and compute
// those with constant inputs once, which their last input prevents: the token of FarandoleToken.
enum class Order : bool { kAny, kOfProgram };

// Inputs and outputs are in the syntax of TensorFlow's op definitions. Unused places are null.
struct OpRow {
  const char* name;
  Order order;
  const char* inputs[3];
  const char* outputs[2];
  unsigned attributes;
  ShapeFunction shapes;
  Collective collective;
};

constexpr const char* kTensors = "tensors: T";
constexpr const char* kResults = "results: T";
constexpr const char* kToken = "token: int32";

// clang-format off
const OpRow kOps[] = {
    {"FarandoleAllreduce", Order::kAny, {kTensors, kToken}, {kResults}, kNames | kProcessSet | kReduction,
     &same_shapes, {FDL_NAMED_ALLREDUCE, false, Results::kInPlace}},
    {"FarandoleAllgather", Order::kAny, {kTensors, kToken}, {kResults}, kNames | kProcessSet,
     &other_rows, {FDL_NAMED_ALLGATHER, false, Results::kAllocated}},
    {"FarandoleBroadcast", Order::kAny, {kTensors, kToken}, {kResults}, kNames | kProcessSet | kRoot,
     &same_shapes, {FDL_NAMED_BROADCAST, false, Results::kInPlace}},
    {"FarandoleReducescatter", Order::kAny, {kTensors, kToken}, {kResults}, kNames | kProcessSet | kReduction,
     &other_rows, {FDL_NAMED_REDUCE_SCATTER, false, Results::kAllocated}},
    {"FarandoleAlltoall", Order::kAny, {kTensors, "splits: int32", kToken}, {kResults, "received_splits: int32"},
     kNames | kProcessSet, &exchanged_rows, {FDL_NAMED_ALLTOALL, false, Results::kExchanged}},
    {"FarandoleBarrier", Order::kOfProgram, {}, {}, kNames | kProcessSet,
     &nothing, {FDL_NAMED_BARRIER, false, Results::kNone}},
    {"FarandoleJoin", Order::kOfProgram, {}, {"last_joined: int32"}, kProcessSet,
     &scalar, {FDL_NAMED_BARRIER, true, Results::kLastJoined}},
};
// clang-format on

// TensorFlow passes no data of the registration to a kernel's functions, so each row has a function of its own.
template <std::size_t index>
void* create(TF_OpKernelConstruction* construction) {
  const OpRow& row = kOps[index];
  // Text of attributes is parsed here, once for each node: a run of the kernel parses nothing.
  Status status;
  Attributes attributes = read_attributes(construction, row.attributes, status);
  if (!status.ok()) {
    tensorflow().OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  return new CollectiveKernel(row.collective, std::move(attributes));
}

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  Call::run(*static_cast<CollectiveKernel*>(kernel), context, done);
}

// TensorFlow destroys a kernel when no run of it is left, so that no call refers to it any more.
void destroy(void* kernel) { delete static_cast<CollectiveKernel*>(kernel); }

void define(const OpRow& row) {
  const TensorFlowApi& tf = tensorflow();
  TF_OpDefinitionBuilder* builder = tf.NewOpDefinitionBuilder(row.name);
  bool has_tensors = false;
  for (const char* input : row.inputs) {
    if (input != nullptr) tf.OpDefinitionBuilderAddInput(builder, input);
    has_tensors = has_tensors || input == kTensors;
  }
  for (const char* output : row.outputs)
    if (output != nullptr) tf.OpDefinitionBuilderAddOutput(builder, output);
  if (has_tensors) tf.OpDefinitionBuilderAddAttr(builder, ("T: list(" + type_list() + ") >= 1").c_str());
  define_attributes(builder, row.attributes);
  // Any call of this function makes an op stateful, with false too.
  if (row.order == Order::kOfProgram) tf.OpDefinitionBuilderSetIsStateful(builder, true);
  tf.OpDefinitionBuilderSetShapeInferenceFunction(builder, row.shapes);
  // Takes the builder over.
  Status status;
  tf.RegisterOpDefinition(builder, status.get());
}

template <std::size_t... index>
void register_collectives(std::index_sequence<index...>) {
  auto add = [](const OpRow& row, CreateFunction create_kernel) {
    define(row);
    Status status;
    tensorflow().RegisterKernelBuilder(
        row.name, tensorflow().NewAsyncKernelBuilder(row.name, "CPU", create_kernel, &compute, &destroy), status.get());
  };
  (add(kOps[index], &create<index>), ...);
}

// Without TensorFlow in the process nothing is registered; farandole/tensorflow/library.py reports it.
const bool is_registered = [] {
  if (!find_tensorflow()) return false;
  register_collectives(std::make_index_sequence<std::size(kOps)>());
  register_facts();
  return true;
}();

}  // namespace
}  // namespace farandole_tensorflow
