// Numbers of this rank, computed at each run: an elastic job may have other ranks then.
#include "facts.h"

#include <string>
#include <utility>

#include "attributes.h"
#include "failures.h"
#include "process_sets.h"
#include "shapes.h"

namespace farandole_tensorflow {

namespace {

// A row has no state, so that reading a fact allocates nothing and needs only the lock of UsedProcessSet.
struct FactRow {
  const char* name;
  int (*value)(const ProcessSet& set, const RankFacts& facts);
};

constexpr FactRow kFacts[] = {
    {"size", [](const ProcessSet& set, const RankFacts&) { return set.size; }},
    {"rank_in_set", [](const ProcessSet& set, const RankFacts&) { return fdl_group_rank(set.group); }},
    {"rank", [](const ProcessSet&, const RankFacts& facts) { return facts.rank; }},
    {"local_size", [](const ProcessSet&, const RankFacts& facts) { return facts.local_size; }},
    {"local_rank", [](const ProcessSet&, const RankFacts& facts) { return facts.local_rank; }},
    {"included", [](const ProcessSet& set, const RankFacts&) { return set.group != nullptr ? 1 : 0; }},
};

void deliver(TF_OpKernelContext* context, int value) {
  Status status;
  TF_Tensor* tensor = tensorflow().AllocateOutput(context, 0, TF_INT32, nullptr, 0, sizeof(int32_t), status.get());
  if (!status.ok()) return fail(context, status);
  *static_cast<int32_t*>(tensorflow().TensorData(tensor)) = value;
  tensorflow().DeleteTensor(tensor);
}

void* create_fact(TF_OpKernelConstruction* construction) {
  Status status;
  Attributes attributes = read_attributes(construction, kProcessSet | kFact, status);
  if (status.ok()) return new Attributes(std::move(attributes));
  tensorflow().OpKernelConstruction_Failure(construction, status.get());
  return nullptr;
}

void destroy_fact(void* attributes) { delete static_cast<Attributes*>(attributes); }

void compute_fact(void* kernel, TF_OpKernelContext* context) {
  const auto& attributes = *static_cast<const Attributes*>(kernel);
  const UsedProcessSet set(attributes.process_set);
  if (set.get() == nullptr) return fail(context, set.absence().code, set.absence().text);
  for (const FactRow& row : kFacts)
    if (attributes.fact == row.name) return deliver(context, row.value(*set.get(), set.facts()));
  fail(context, FDL_INVALID_ARGUMENT, ("there is no fact '" + attributes.fact + "'").c_str());
}

// The token's value is never read. It has a kernel so that TensorFlow does not know it before the graph runs.
void* create_token(TF_OpKernelConstruction*) { return nullptr; }
void compute_token(void*, TF_OpKernelContext* context) { deliver(context, 0); }
void destroy_token(void*) {}

// Failures of the registrations are not reported here: Python then finds no function for the op.
void register_kernel(const char* name, TF_KernelBuilder* builder) {
  Status status;
  tensorflow().RegisterKernelBuilder(name, builder, status.get());
}

// All facts are int32 numbers without dimensions.
TF_OpDefinitionBuilder* new_op(const char* name, const char* output) {
  TF_OpDefinitionBuilder* builder = tensorflow().NewOpDefinitionBuilder(name);
  tensorflow().OpDefinitionBuilderAddOutput(builder, output);
  tensorflow().OpDefinitionBuilderSetShapeInferenceFunction(builder, &scalar);
  return builder;
}

void register_op(TF_OpDefinitionBuilder* builder) {
  Status status;
  tensorflow().RegisterOpDefinition(builder, status.get());
}

}  // namespace

void register_facts() {
  TF_OpDefinitionBuilder* fact = new_op("FarandoleFact", "value: int32");
  define_attributes(fact, kProcessSet | kFact);
  tensorflow().OpDefinitionBuilderSetIsStateful(fact, true);  // else a graph would compute it once
  register_op(fact);
  register_kernel("FarandoleFact",
                  tensorflow().NewKernelBuilder("FarandoleFact", "CPU", &create_fact, &compute_fact, &destroy_fact));

  // An input that is not constant, for ops whose other inputs may be.
  TF_OpDefinitionBuilder* token = new_op("FarandoleToken", "token: int32");
  tensorflow().OpDefinitionBuilderSetIsStateful(token, true);
  register_op(token);
  register_kernel("FarandoleToken", tensorflow().NewKernelBuilder("FarandoleToken", "CPU", &create_token,
                                                                  &compute_token, &destroy_token));
}

}  // namespace farandole_tensorflow
