// planned_sum() builds the planned bucket of an allreduce from tensors of float32, as a plan or a locked order gives it
// to the executor.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/reduce.h"
#include "runtime/named/entry.h"

namespace fdl::test {

// One tensor of this rank, with its handle. It is reduced in place after reduce_in_place().
struct Tensor {
  explicit Tensor(std::vector<float> values) : input(std::move(values)), output(input.size(), 0) {}
  void reduce_in_place() { in_place = true; }

  Entry entry(const std::string& name) {
    Entry made{.input = input.data(), .output = in_place ? input.data() : output.data(), .handle = handle};
    made.request.name = name;
    made.request.shape = {static_cast<int64_t>(input.size())};
    made.request.op = static_cast<uint8_t>(Op::sum);
    handle->output(0).data = made.output;
    return made;
  }

  std::vector<float> input;
  std::vector<float> output;
  bool in_place = false;
  std::shared_ptr<Handle> handle = std::make_shared<Handle>(1);
};

// The tensors are called "0", "1" and so on.
inline PlannedBucket planned_sum(const std::vector<Tensor*>& tensors, bool provisional = false) {
  Bucket bucket;
  bucket.op = static_cast<uint8_t>(Op::sum);
  PlannedBucket planned{.provisional = provisional};
  for (Tensor* tensor : tensors) {
    bucket.names.push_back(std::to_string(bucket.names.size()));
    bucket.element_counts.push_back(static_cast<int64_t>(tensor->input.size()));
    planned.entries.emplace_back(tensor->entry(bucket.names.back()));
  }
  planned.bucket = std::make_shared<const Bucket>(std::move(bucket));
  return planned;
}

inline std::byte* as_bytes(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

}  // namespace fdl::test
