// Fuzzes the readers of /etc/hosts, of a hostfile and of a pod's name.
#include "bootstrap/launchers/platform.h"
#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

// The first line is the host's name, the rest is the file.
bool run(ConstBytes input) {
  const std::string_view text = text_of(input);
  const std::string_view name = text.substr(0, text.find('\n'));
  const std::string_view file = text.substr(std::min(text.size(), name.size() + 1));
  const std::string domain = domain_in_hosts_file(file, name);
  FDL_CHECK(domain.size() <= file.size());
  FDL_CHECK(other_hosts_in(file, name) >= 0);
  const auto ordinal = ordinal_of(name);
  if (ordinal) {
    FDL_CHECK(ordinal->number >= 0 && ordinal->number <= 9999);
    FDL_CHECK(name.starts_with(ordinal->prefix + std::to_string(ordinal->number)));
  }
  FDL_CHECK(with_domain(std::string(name), {std::string(name), domain, {}}).starts_with(name));
  return ordinal.has_value() || !domain.empty();
}

std::vector<std::string> seeds() {
  return {"train-3\n127.0.0.1 localhost\n10.0.0.7 train-3.train.default.svc.cluster.local train-3 # kubelet\n",
          "worker-0\nworker-0 slots=2\nworker-1:2\nworker-2\n", "a-1.b\n# nothing\n\n"};
}

}  // namespace

const Target host_files{"host_files", run, seeds};

}  // namespace fdl::fuzz
