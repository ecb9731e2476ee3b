// Each model writes the layers of its network.
#include "cli/simulate/training_models.h"

#include "base/split_list.h"
#include "cli/simulate/cluster_text.h"

namespace fdl {
namespace {

using Sizes = std::vector<int64_t>;

void append(Sizes& sizes, std::initializer_list<int64_t> more) { sizes.insert(sizes.end(), more); }

Sizes resnet50() {
  Sizes sizes;
  const auto convolution = [&sizes](int64_t in, int64_t out, int64_t area) {
    append(sizes, {in * out * area, out, out});  // and its normalization
  };
  convolution(3, 64, 49);
  int64_t in = 64;
  int64_t width = 64;
  for (const int blocks : {3, 4, 6, 3}) {
    for (int block = 0; block < blocks; ++block) {
      convolution(in, width, 1);
      convolution(width, width, 9);
      convolution(width, width * 4, 1);
      if (block == 0) convolution(in, width * 4, 1);
      in = width * 4;
    }
    width *= 2;
  }
  append(sizes, {2048 * 1000, 1000});
  return sizes;
}

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
  if (model == "resnet50") return resnet50();
  if (model == "bert-base") return bert_base();
  const auto sizes = model.find(':') == std::string::npos ? parse_sizes(model, 2, 1)
                                                          : Result<Sizes>(Status(Code::invalid_argument, "a range"));
  if (sizes.ok()) return sizes;
  return Status(Code::invalid_argument,
                "'" + model + "' is none of resnet50 and bert-base, and no list of elements such as 4M,64K,1000");
}

}  // namespace fdl
