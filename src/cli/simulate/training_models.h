// The training models are the sizes of the parameters of well-known networks, computed from their architectures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace fdl {

// Elements of each parameter in the order of the forward pass: "resnet50" (He et al. 2015, 50 layers, 1000 classes: 161
// tensors), "bert-base" (Devlin et al. 2018, uncased: 199 tensors), or "SIZE,SIZE,...": elements, as 4M,64K,1000.
Result<std::vector<int64_t>> parameters_of(const std::string& model);

}  // namespace fdl
