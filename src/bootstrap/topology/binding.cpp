// This file distributes the cores that hwloc finds over ranks.
#include "bootstrap/topology/binding.h"

#include <fmt/format.h>

namespace fdl {
namespace {

using Processors = std::vector<int>;

Binding unbound(const std::string& why) { return {{}, "ranks are not bound: " + why}; }

// Why automatic binding leaves the ranks alone; empty: it binds them.
std::string objection(int ranks, const UsableProcessors& usable) {
  const auto cores = static_cast<int>(usable.by_core.size());
  if (ranks < 2) return "there is one rank";
  if (ranks > cores) return fmt::format("{} ranks share {} core{}", ranks, cores, cores == 1 ? "" : "s");
  if (usable.is_restricted) return "this process may use a part of the machine's processors only";
  if (usable.quota > 0) return "a quota limits their time";
  return {};
}

// Each rank gets as many cores as the others; the cores that are left over stay free.
Binding by_core(int ranks, const std::vector<Processors>& cores) {
  const std::size_t each = cores.size() / static_cast<std::size_t>(ranks);
  Binding binding;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
    Processors& mine = binding.processors.emplace_back();
    for (std::size_t i = rank * each; i < (rank + 1) * each; ++i) {
      mine.insert(mine.end(), cores[i].begin(), cores[i].end());
    }
  }
  binding.text = each == 1 ? "each rank to a core" : fmt::format("each rank to {} cores", each);
  return binding;
}

Binding by_node(int ranks, const std::vector<Processors>& nodes) {
  Binding binding;
  const auto count = static_cast<int64_t>(nodes.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    binding.processors.push_back(nodes[static_cast<std::size_t>(rank * count / ranks)]);
  }
  binding.text = fmt::format("each rank to one of {} NUMA nodes", nodes.size());
  return binding;
}

}  // namespace

std::optional<BindTo> bind_to_from(std::string_view word) {
  if (word == "auto") return BindTo::automatic;
  if (word == "core") return BindTo::core;
  if (word == "numa") return BindTo::numa;
  if (word == "none") return BindTo::none;
  return std::nullopt;
}

Result<Binding> bind_ranks(BindTo to, int ranks, const UsableProcessors& usable) {
  if (to == BindTo::none) return unbound("--bind-to none");
  if (to == BindTo::numa) {
    if (usable.by_node.size() > 1) return by_node(ranks, usable.by_node);
    return Status(Code::unsupported, "--bind-to numa: this process may use cores of one NUMA node only; bind to core");
  }
  if (to == BindTo::automatic) {
    if (const std::string why = objection(ranks, usable); !why.empty()) return unbound(why);
  }
  const auto cores = static_cast<int>(usable.by_core.size());
  if (ranks <= cores) return by_core(ranks, usable.by_core);
  return Status(Code::unsupported, fmt::format("--bind-to core: there are {} ranks and {} cores that this process may "
                                               "use; start fewer ranks, or bind to none",
                                               ranks, cores));
}

std::string describe_binding(const UsableProcessors& usable) {
  if (usable.by_core.size() < 2) return "farandole run binds no ranks: there is one core";
  if (const std::string why = objection(2, usable); !why.empty()) return "farandole run binds no ranks: " + why;
  return fmt::format("farandole run binds 2 to {} ranks, each to an equal share of the cores", usable.by_core.size());
}

}  // namespace fdl
