// The sizes of ResNet-50's parameters, in elements: 161 tensors, 25.6 million elements.
#pragma once

#include <cstddef>
#include <vector>

namespace fdl {

inline std::vector<std::size_t> resnet50() {
  std::vector<std::size_t> sizes;
  const auto convolution = [&sizes](std::size_t in, std::size_t out, std::size_t area) {
    for (const std::size_t size : {in * out * area, out, out}) sizes.push_back(size);
  };
  convolution(3, 64, 49);
  std::size_t in = 64;
  std::size_t width = 64;
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
  for (const std::size_t size : {2048 * 1000, 1000}) sizes.push_back(size);
  return sizes;
}

}  // namespace fdl
