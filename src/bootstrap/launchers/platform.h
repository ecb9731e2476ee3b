// Platform holds facts about this process's pod that no environment variable provides: its host name and files in the
// pod.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/config.h"

namespace fdl {

class Variables;

struct Platform {
  std::string host_name;     // in a pod: the pod's name, set by its controller
  std::string domain;        // of a pod with a subdomain: "train.default.svc.cluster.local"; else empty
  std::string mpi_hostfile;  // the content of the MPI operator's hostfile; empty: there is none
  // Returns whether the launcher's service ("pmix", "pmi") can be reached; empty: none can.
  std::function<bool(std::string_view service, const Variables&, const Config&)> serves = {};

  static Platform of_this_host();
};

// Splits "train-3" into "train-" and 3. Returns nothing if the name does not end in a number. The random endings of
// other pods are longer than the numbers that are accepted.
struct Ordinal {
  std::string prefix;
  int number = 0;
};
std::optional<Ordinal> ordinal_of(std::string_view host_name);

// Returns the domain of this host's full name in a hosts file: kubelet writes "10.0.0.7 train-3.train.ns.svc train-3".
std::string domain_in_hosts_file(std::string_view text, std::string_view host_name);

// Returns how many hosts other than this one a hostfile lists.
int other_hosts_in(std::string_view hostfile, std::string_view host_name);

// Appends the domain to "train-0", if there is one.
std::string with_domain(const std::string& name, const Platform& platform);

}  // namespace fdl
