// Each model writes the layers of its network.
#include "cli/simulate/training_models.h"

#include "base/split_list.h"
#include "cli/simulate/cluster_text.h"
#include "cli/simulate/resnet50.h"

namespace fdl {
namespace {

using Sizes = std::vector<int64_t>;

void append(Sizes& sizes, std::initializer_list<int64_t> more) { sizes.insert(sizes.end(), more); }

Sizes bert_base() {
  constexpr int64_t kWidth = 768;
  constexpr int64_t kInner = 3072;
  Sizes sizes{30522 * kWidth, 512 * kWidth, 2 * kWidth, kWidth, kWidth};
  const auto linear = [&sizes](int64_t in, int64_t out) { append(sizes, {in * out, out}); };
  for (int layer = 0; layer < 12; ++layer) {
    for (int projection = 0; projection < 4; ++projection) linear(kWidth, kWidth);
    append(sizes, {kWidth, kWidth});
    linear(kWidth, kInner);
    linear(kInner, kWidth);
    append(sizes, {kWidth, kWidth});
  }
  linear(kWidth, kWidth);
  return sizes;
}

}  // namespace

Result<std::vector<int64_t>> parameters_of(const std::string& model) {
  if (model == "resnet50") {
    const std::vector<std::size_t> sizes = resnet50();
    return Sizes(sizes.begin(), sizes.end());
  }
  if (model == "bert-base") return bert_base();
  const auto sizes = model.find(':') == std::string::npos ? parse_sizes(model, 2, 1)
                                                          : Result<Sizes>(Status(Code::invalid_argument, "a range"));
  if (sizes.ok()) return sizes;
  return Status(Code::invalid_argument,
                "'" + model + "' is none of resnet50 and bert-base, and no list of elements such as 4M,64K,1000");
}

}  // namespace fdl
