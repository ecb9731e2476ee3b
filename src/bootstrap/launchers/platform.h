// Platform: facts about this process's pod that no environment variable holds: its host name, and files in the pod.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fdl {

struct Platform {
  std::string host_name;     // in a pod: the name that its controller gave it
  std::string domain;        // of a pod with a subdomain: "train.default.svc.cluster.local"; else empty
  std::string mpi_hostfile;  // what stands in the MPI operator's hostfile; empty: there is none

  static Platform of_this_host();
};

// "train-3" -> "train-" and 3. Nothing where the name does not end so; the random endings of other pods never do.
struct Ordinal {
  std::string prefix;
  int number = 0;
};
std::optional<Ordinal> ordinal_of(std::string_view host_name);

// The rest of the full name that a hosts file gives this host: kubelet writes "10.0.0.7 train-3.train.ns.svc train-3".
std::string domain_in_hosts_file(std::string_view text, std::string_view host_name);

// How many hosts other than this one a hostfile lists.
int other_hosts_in(std::string_view hostfile, std::string_view host_name);

// "train-0" in the domain, where there is one.
std::string with_domain(const std::string& name, const Platform& platform);

}  // namespace fdl
