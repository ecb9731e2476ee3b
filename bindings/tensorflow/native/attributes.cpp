// Definition and reading of attributes.
#include "attributes.h"

#include <charconv>

namespace farandole_tensorflow {

namespace {

struct AttributeRow {
  AttributeGroup group;
  const char* definition;
};

// Scales are decimal text: TensorFlow's float attributes have 32 bits, and a scale is a double.
constexpr AttributeRow kAttributeRows[] = {
    {kNames, "tensor_names: list(string) >= 1"},
    {kProcessSet, "process_set: int = 0"},
    {kReduction, "reduce_op: int"},
    {kReduction, "prescale: string = '1'"},
    {kReduction, "postscale: string = '1'"},
    {kRoot, "root_rank: int"},
    {kFact, "fact: string"},
};

// Does not depend on the locale. The Python package writes the text, so it is a number.
double scale_of(const std::string& text) {
  double value = 1.0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Reads attributes until the first failure, which `status` keeps; later reads return empty values.
class Reader {
 public:
  Reader(TF_OpKernelConstruction* construction, Status& status) : construction_(construction), status_(status) {}

  int number(const char* name) {
    int64_t value = 0;
    if (status_.ok()) tensorflow().OpKernelConstruction_GetAttrInt64(construction_, name, &value, status_.get());
    return static_cast<int>(value);
  }

  std::string text(const char* name) {
    std::string value(sizes(name).bytes, '\0');
    if (status_.ok() && !value.empty())
      tensorflow().OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(), status_.get());
    return value;
  }

  std::vector<std::string> texts(const char* name) {
    // TensorFlow copies all texts into `storage`, one after another without a final 0, and returns where each begins.
    const Sizes size = sizes(name);
    if (!status_.ok() || size.count <= 0) return {};
    const auto count = static_cast<size_t>(size.count);
    std::vector<char*> starts(count);
    std::vector<size_t> lengths(count);
    std::string storage(size.bytes, '\0');
    tensorflow().OpKernelConstruction_GetAttrStringList(construction_, name, starts.data(), lengths.data(), size.count,
                                                        storage.data(), storage.size(), status_.get());
    std::vector<std::string> all;
    if (status_.ok())
      for (size_t i = 0; i < count; ++i) all.emplace_back(starts[i], lengths[i]);
    return all;
  }

 private:
  struct Sizes {
    int count = 0;  // of a list
    size_t bytes = 0;
  };
  Sizes sizes(const char* name) {
    int32_t count = 0, bytes = 0;
    if (status_.ok()) tensorflow().OpKernelConstruction_GetAttrSize(construction_, name, &count, &bytes, status_.get());
    return {count, static_cast<size_t>(bytes < 0 ? 0 : bytes)};
  }

  TF_OpKernelConstruction* construction_;
  Status& status_;
};

}  // namespace

void define_attributes(TF_OpDefinitionBuilder* builder, unsigned groups) {
  for (const AttributeRow& row : kAttributeRows)
    if (groups & row.group) tensorflow().OpDefinitionBuilderAddAttr(builder, row.definition);
}

Attributes read_attributes(TF_OpKernelConstruction* construction, unsigned groups, Status& status) {
  Attributes all;
  Reader read(construction, status);
  if (groups & kNames) all.names = read.texts("tensor_names");
  if (groups & kProcessSet) all.process_set = read.number("process_set");
  if (groups & kReduction) {
    all.op = static_cast<fdl_reduce_op>(read.number("reduce_op"));
    all.prescale = scale_of(read.text("prescale"));
    all.postscale = scale_of(read.text("postscale"));
  }
  if (groups & kRoot) all.root_rank = read.number("root_rank");
  if (groups & kFact) all.fact = read.text("fact");
  return all;
}

}  // namespace farandole_tensorflow
