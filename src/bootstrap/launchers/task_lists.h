// These launchers provide a list of all hosts; a node finds its number by its position in the list.
#pragma once

#include <optional>

#include "base/status.h"
#include "bootstrap/launchers/node_launchers.h"

namespace fdl {

Result<std::optional<NodeFacts>> read_tf_config(const Variables& variables, const Platform& platform);
Result<std::optional<NodeFacts>> read_skypilot(const Variables& variables, const Platform& platform);
Result<std::optional<NodeFacts>> read_sagemaker(const Variables& variables, const Platform& platform);
Result<std::optional<NodeFacts>> read_volcano(const Variables& variables, const Platform& platform);

}  // namespace fdl
