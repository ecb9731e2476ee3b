// Nothing here opens a device: a choice is made from what fi_getinfo() returns.
#include "transports/ofi/ofi_devices.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/split_list.h"
#include "system/addresses.h"
#include "system/rdma_devices.h"
#include "transports/ofi/ofi_transport.h"

namespace fdl {
namespace {

constexpr std::string_view kDirect = "efa-direct";
constexpr std::size_t kImmediateBytes = 4;

// The provider efa has two fabrics: `efa`, with protocols of its own on top of the device, and `efa-direct`, without.
// The former is asked first, because it registers the memory of senders itself and repeats what a receiver was not
// ready for.
struct Query {
  std::string_view provider;
  std::string_view fabric = {};
  bool local_registration = false;
};

// What this transport needs, in the form that tcp, shm and efa all offer. Without FI_MR_LOCAL the provider registers
// sources itself, with a cache that notices freed memory.
OfiLibrary::Infos hints_for(const OfiLibrary& library, const Query& query) {
  auto hints = library.make_info();
  hints->caps = FI_MSG | FI_RMA;
  // The writes of peers may consume posted receives there; OfiLink posts them again.
  hints->mode = FI_CONTEXT | FI_CONTEXT2 | (query.fabric == kDirect ? FI_RX_CQ_DATA : 0);
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT |
                                (query.local_registration ? FI_MR_LOCAL : 0);
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->cq_data_size = kImmediateBytes;
  if (!query.provider.empty()) hints->fabric_attr->prov_name = ::strdup(std::string(query.provider).c_str());
  if (!query.fabric.empty()) hints->fabric_attr->name = ::strdup(std::string(query.fabric).c_str());
  return hints;
}

std::vector<Query> queries_for(std::string_view provider) {
  if (provider == kDirect) return {{"efa", kDirect, true}};
  std::vector<Query> queries = {{provider}, {provider, {}, true}};
  if (provider == "efa") queries.push_back({provider, kDirect, true});
  return queries;
}

std::string ip_of(const fi_info* info) {
  char text[INET6_ADDRSTRLEN] = {};
  if (info->src_addr == nullptr || info->src_addrlen < sizeof(sockaddr_in)) return {};
  const auto* address = static_cast<const sockaddr*>(info->src_addr);
  if (address->sa_family != AF_INET) return {};
  ::inet_ntop(AF_INET, &static_cast<const sockaddr_in*>(info->src_addr)->sin_addr, text, sizeof text);
  return text;
}

bool is_over_ip(const fi_info* info) {
  return info->addr_format == FI_SOCKADDR || info->addr_format == FI_SOCKADDR_IN ||
         info->addr_format == FI_SOCKADDR_IN6;
}

// "tcp" is also the name of "tcp;ofi_rxm".
bool is_provider(std::string_view name, std::string_view wanted) {
  return name == wanted || (name.starts_with(wanted) && name[wanted.size()] == ';');
}

bool is_direct(const fi_info* info) { return info->fabric_attr->name != nullptr && kDirect == info->fabric_attr->name; }

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words = split_list(list);
  std::erase(words, "");
  return words;
}

std::string what_it_lacks(const fi_info* info) {
  if (info->ep_attr->type == FI_EP_MSG) return "only connections (FI_EP_MSG)";
  if (info->ep_attr->type != FI_EP_RDM) return "only datagrams (FI_EP_DGRAM)";
  if ((info->caps & FI_MSG) == 0) return "no messages (FI_MSG)";
  if ((info->caps & FI_RMA) == 0) return "no remote writes (FI_RMA)";
  if (info->domain_attr->cq_data_size < kImmediateBytes) return "no 4 bytes with a write (cq_data_size)";
  return "a mode or registration that farandole does not have";
}

// Each provider of this library with what it lacks: of its offers the one that lacks least.
std::string candidates(const OfiLibrary& library) {
  const auto all = library.find(nullptr);
  if (!all.ok()) return "libfabric lists no provider: " + all.status().text();
  std::map<std::string, const fi_info*> best;
  const auto rank_of = [](const fi_info* info) {
    return info->ep_attr->type == FI_EP_RDM ? ((info->caps & FI_RMA) != 0 ? 2 : 1) : 0;
  };
  for (const fi_info* info = all->get(); info != nullptr; info = info->next) {
    const fi_info*& kept = best[info->fabric_attr->prov_name];
    if (kept == nullptr || rank_of(info) > rank_of(kept)) kept = info;
  }
  std::string text;
  for (const auto& [name, info] : best) {
    const std::string lack = name == "shm" ? "it reaches no other host" : what_it_lacks(info);
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, lack);
  }
  return "it has " + text;
}

// The offers of one provider and one fabric, in libfabric's order.
struct Offers {
  OfiLibrary::Infos all{nullptr, nullptr};
  std::vector<const fi_info*> of_one_device_each;
};

Offers offers_of(OfiLibrary::Infos infos, const Query& query) {
  Offers offers{std::move(infos), {}};
  std::string provider;
  std::set<std::string> taken;
  for (const fi_info* info = offers.all.get(); info != nullptr; info = info->next) {
    const std::string_view name = info->fabric_attr->prov_name;
    if (query.provider.empty() ? name == "shm" : !is_provider(name, query.provider)) continue;
    if (is_direct(info) != (query.fabric == kDirect)) continue;
    if (provider.empty()) provider = name;
    if (provider == name && taken.insert(info->domain_attr->name).second) offers.of_one_device_each.push_back(info);
  }
  return offers;
}

Result<Offers> find_offers(const OfiLibrary& library, std::string_view provider) {
  Status why(Code::unsupported, "no query");
  for (const Query& query : queries_for(provider)) {
    auto found = library.find(hints_for(library, query).get());
    if (!found.ok()) {
      if (why.text() == "no query") why = found.status();
      continue;
    }
    Offers offers = offers_of(found.take(), query);
    if (!offers.of_one_device_each.empty()) return offers;
    why = Status(Code::unsupported, "none of its devices reaches other hosts");
  }
  return Status(Code::unsupported, fmt::format("ofi: {} offers no provider{}{} with messages and remote writes: {}; {}",
                                               library.description(), provider.empty() ? "" : " ", provider, why.text(),
                                               candidates(library)));
}

using Devices = std::vector<const fi_info*>;

Result<Devices> named_devices(const Devices& present, const std::vector<std::string>& names,
                              std::string_view provider) {
  Devices chosen;
  for (const std::string& name : names) {
    const auto at = std::ranges::find_if(
        present, [&](const fi_info* info) { return info->domain_attr->name == name || device_name(*info) == name; });
    if (at == present.end()) {
      std::set<std::string> there;
      for (const fi_info* info : present) there.insert(info->domain_attr->name);
      return Status(Code::invalid_argument,
                    fmt::format("ofi: FARANDOLE_OFI_DEVICES names {}, which provider {} does not have; it has {}", name,
                                provider, fmt::join(there, ", ")));
    }
    if (std::ranges::find(chosen, *at) == chosen.end()) chosen.push_back(*at);
  }
  return chosen;
}

Result<Devices> device_of_tcp(const Devices& present, const Config& config) {
  FDL_ASSIGN_OR_RETURN(const auto addresses, addresses_of_interfaces(config.interfaces, 0, false));
  for (const Address& address : addresses) {
    const auto at = std::ranges::find_if(present, [&](const fi_info* info) {
      const std::string ip = ip_of(info);
      return !ip.empty() && address.text.find(ip + ":") != std::string::npos;
    });
    if (at != present.end()) return Devices{*at};
  }
  return Devices();
}

Devices near_devices(const Devices& present, const Config& config, const OfiPlace& place) {
  std::vector<int> nodes;
  for (const fi_info* info : present) nodes.push_back(numa_node_of_device(config.sysfs_root, device_name(*info)));
  Devices chosen;
  for (const std::size_t i : share_of_devices(nodes, place)) chosen.push_back(present[i]);
  return chosen;
}

}  // namespace

OfiPlace place_in(const Membership& membership) {
  OfiPlace place{.index = 0, .neighbours = 0, .most_on_one_host = 1, .numa_node = membership.me().numa_node};
  std::map<std::string, int> per_host;
  for (int i = 0; i < membership.size(); ++i) {
    const Member& member = membership.members[static_cast<std::size_t>(i)];
    place.most_on_one_host = std::max(place.most_on_one_host, ++per_host[member.host_id]);
    if (member.host_id != membership.me().host_id || member.numa_node != place.numa_node) continue;
    if (i < membership.rank) ++place.index;
    ++place.neighbours;
  }
  return place;
}

std::vector<std::size_t> share_of_devices(const std::vector<int>& numa_nodes, const OfiPlace& place) {
  const std::size_t count =
      std::max<std::size_t>(1, numa_nodes.size() / static_cast<std::size_t>(place.most_on_one_host));
  std::vector<std::size_t> near, far;
  for (std::size_t i = 0; i < numa_nodes.size(); ++i) {
    const bool is_near = place.numa_node < 0 || numa_nodes[i] < 0 || numa_nodes[i] == place.numa_node;
    (is_near ? near : far).push_back(i);
  }
  const auto from = [&](const std::vector<std::size_t>& devices, std::vector<std::size_t>& taken) {
    if (devices.empty()) return;
    const std::size_t begin =
        static_cast<std::size_t>(place.index) * devices.size() / static_cast<std::size_t>(place.neighbours);
    for (std::size_t i = 0; i < devices.size() && taken.size() < count; ++i) {
      taken.push_back(devices[(begin + i) % devices.size()]);
    }
  };
  std::vector<std::size_t> taken;
  from(near, taken);
  from(far, taken);
  std::ranges::sort(taken);
  return taken;
}

std::string device_name(const fi_info& info) {
  if (info.nic != nullptr && info.nic->device_attr != nullptr && info.nic->device_attr->name != nullptr) {
    return info.nic->device_attr->name;
  }
  std::string name = info.domain_attr->name;
  for (const std::string_view end : {"-rdm", "-direct", "-dgrm"}) {
    if (name.ends_with(end)) return name.substr(0, name.size() - end.size());
  }
  return name;
}

Result<OfiChoice> choose_devices(const OfiLibrary& library, std::string_view provider, const Config& config,
                                 const OfiPlace& place) {
  FDL_ASSIGN_OR_RETURN(const Offers offers, find_offers(library, provider));
  const Devices& present = offers.of_one_device_each;
  const std::string_view found = present.front()->fabric_attr->prov_name;
  const auto expected = static_cast<std::size_t>(config.expect_efa);
  if (is_provider(found, "efa") && present.size() < expected) {
    return Status(Code::unsupported,
                  fmt::format("ofi: FARANDOLE_EXPECT_EFA demands {} EFA devices, and there {} {}: request that number "
                              "of vpc.amazonaws.com/efa, or look at the launch template's interfaces",
                              expected, present.size() == 1 ? "is" : "are", present.size()));
  }
  OfiChoice choice;
  choice.present = present.size();
  Devices chosen;
  if (const auto names = words_of(config.ofi_devices); !names.empty()) {
    FDL_ASSIGN_OR_RETURN(chosen, named_devices(present, names, provider.empty() ? found : provider));
    choice.unused = "FARANDOLE_OFI_DEVICES does not name the others";
  } else if (is_over_ip(present.front())) {
    FDL_ASSIGN_OR_RETURN(chosen, device_of_tcp(present, config));
    choice.unused = "one has the address that TCP would use";
  } else {
    chosen = near_devices(present, config, place);
    choice.unused = fmt::format(
        "the others are left to the other ranks of the host{}",
        place.numa_node >= 0 ? fmt::format(", this one is on NUMA node {}", place.numa_node) : std::string());
  }
  if (chosen.empty()) {
    return Status(Code::unsupported, fmt::format("ofi: {} has no device of provider {} that reaches other hosts",
                                                 library.description(), provider.empty() ? found : provider));
  }
  if (chosen.size() == present.size()) choice.unused.clear();
  for (const fi_info* info : chosen) choice.devices.push_back(library.copy(info));
  return choice;
}

std::string list_providers(const OfiLibrary& library) {
  std::map<std::string, std::set<std::string>> devices;
  for (const bool local : {false, true}) {
    const auto found = library.find(hints_for(library, {{}, {}, local}).get());
    if (!found.ok()) continue;
    for (const fi_info* info = found->get(); info != nullptr; info = info->next) {
      devices[info->fabric_attr->prov_name].insert(info->domain_attr->name);
    }
  }
  std::string text;
  for (const auto& [provider, names] : devices) {
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", provider, fmt::join(names, ", "));
  }
  return text;
}

// ---- Words of FARANDOLE_TRANSPORT ----

bool is_ofi(std::string_view word) { return word == "efa" || word == "ofi" || word.starts_with("ofi:"); }

std::string_view ofi_provider_in(std::string_view word) {
  if (word == "efa") return word;
  return word.starts_with("ofi:") ? word.substr(4) : std::string_view();
}

}  // namespace fdl
