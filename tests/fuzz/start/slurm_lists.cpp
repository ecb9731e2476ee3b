// Fuzzes the look-ups in Slurm's lists: an entry is found without an expansion of the list, which may be without limit.
#include "bootstrap/launchers/slurm_lists.h"

#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

bool run(ConstBytes input) {
  const std::string_view text = text_of(input);
  const auto host = first_slurm_host(text);
  if (host.ok()) {
    FDL_CHECK(!host->empty() && host->size() <= text.size());
    FDL_CHECK(host->find_first_of("[]") == std::string::npos);
  }
  const auto first = slurm_tasks_of_node(text, 0);
  if (first.ok()) {
    FDL_CHECK(first->has_value() && **first >= 0);
    for (const int node : {-1, 1, 1 << 20, 1 << 30}) FDL_CHECK(slurm_tasks_of_node(text, node)->value_or(0) >= 0);
  }
  return host.ok() || first.ok();
}

std::vector<std::string> seeds() { return {"a[1-2,07],b", "rack[1-2]node[01-03]-ib", "2(x3),1", "host", "16"}; }

}  // namespace

const Target slurm_lists{"slurm_lists", run, seeds};

}  // namespace fdl::fuzz
