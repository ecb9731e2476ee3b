// Fuzzes expand_hosts() and expand_counts(): a short text never expands without limit.
#include "bootstrap/launchers/slurm_lists.h"

#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

bool run(ConstBytes input) {
  const std::string_view text = text_of(input);
  const auto hosts = expand_hosts(text);
  if (hosts.ok()) {
    FDL_CHECK(!hosts->empty());
    for (const std::string& host : *hosts) FDL_CHECK(!host.empty() && host.find('[') == std::string::npos);
  }
  const auto counts = expand_counts(text);
  if (counts.ok()) {
    FDL_CHECK(!counts->empty());
    for (const int count : *counts) FDL_CHECK(count >= 0);
  }
  return hosts.ok() || counts.ok();
}

std::vector<std::string> seeds() { return {"a[1-2,07],b", "rack[1-2]node[01-03]-ib", "2(x3),1", "host", "16"}; }

}  // namespace

const Target slurm_lists{"slurm_lists", run, seeds};

}  // namespace fdl::fuzz
