// A rail is used by one thread at a time (FI_THREAD_DOMAIN).
#include "transports/ofi/ofi_rail.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "system/addresses.h"

namespace fdl {

Status OfiRail::failed(const char* call, int64_t code) const {
  return Status(Code::transport, fmt::format("ofi: {} of {} ({}) failed: {} ({})", call, device(), provider(),
                                             library_.text_of(code), code));
}

Result<std::unique_ptr<OfiRail>> OfiRail::open(const OfiLibrary& library, const fi_info* info, std::size_t receives) {
  auto rail = std::unique_ptr<OfiRail>(new OfiRail(library, library.copy(info)));
  FDL_RETURN_IF_ERROR(rail->start(receives));
  return rail;
}

Status OfiRail::start(std::size_t receives) {
  if (const int code = library_.open_fabric(info_->fabric_attr, &fabric_); code != 0) return failed("fi_fabric", code);
  if (const int code = ::fi_domain(fabric_, info_.get(), &domain_, nullptr); code != 0) {
    return failed("fi_domain", code);
  }
  FDL_RETURN_IF_ERROR(open_completions(receives));
  fi_av_attr table{};
  table.type = info_->domain_attr->av_type == FI_AV_MAP ? FI_AV_MAP : FI_AV_TABLE;
  if (const int code = ::fi_av_open(domain_, &table, &addresses_, nullptr); code != 0) {
    return failed("fi_av_open", code);
  }
  if (const int code = ::fi_endpoint(domain_, info_.get(), &endpoint_, nullptr); code != 0) {
    return failed("fi_endpoint", code);
  }
  if (const int code = ::fi_ep_bind(endpoint_, &completions_->fid, FI_TRANSMIT | FI_RECV); code != 0) {
    return failed("fi_ep_bind", code);
  }
  if (const int code = ::fi_ep_bind(endpoint_, &addresses_->fid, 0); code != 0) return failed("fi_ep_bind", code);
  if (const int code = ::fi_enable(endpoint_); code != 0) return failed("fi_enable", code);
  address_.resize(256);
  std::size_t length = address_.size();
  if (const int code = ::fi_getname(&endpoint_->fid, address_.data(), &length); code != 0) {
    return failed("fi_getname", code);
  }
  address_.resize(length);
  return {};
}

// Providers of the first list finish what has begun while their descriptor is not readable; others need calls (ofi_rxd
// repeats lost packets in them), or have no descriptor.
Status OfiRail::open_completions(std::size_t receives) {
  constexpr std::string_view kWaitable[] = {"tcp", "tcp;ofi_rxm", "net", "net;ofi_rxm", "verbs;ofi_rxm"};
  fi_cq_attr attributes{};
  attributes.size = receives + std::max<std::size_t>(info_->tx_attr->size, 256);
  attributes.format = FI_CQ_FORMAT_DATA;
  attributes.wait_obj = std::ranges::find(kWaitable, provider()) != std::end(kWaitable) ? FI_WAIT_FD : FI_WAIT_NONE;
  int code = ::fi_cq_open(domain_, &attributes, &completions_, nullptr);
  if (code == 0 && attributes.wait_obj == FI_WAIT_FD) {
    if (::fi_control(&completions_->fid, FI_GETWAIT, &wake_fd_) != 0) wake_fd_ = -1;
  } else if (code != 0 && attributes.wait_obj == FI_WAIT_FD) {
    attributes.wait_obj = FI_WAIT_NONE;
    code = ::fi_cq_open(domain_, &attributes, &completions_, nullptr);
  }
  return code == 0 ? Status() : failed("fi_cq_open", code);
}

bool OfiRail::may_sleep() {
  fid* waited = &completions_->fid;
  return ::fi_trywait(fabric_, &waited, 1) == 0;
}

void OfiRail::close_endpoint() {
  if (endpoint_ != nullptr) ::fi_close(&std::exchange(endpoint_, nullptr)->fid);
}

OfiRail::~OfiRail() {
  close_endpoint();
  if (addresses_ != nullptr) ::fi_close(&addresses_->fid);
  if (completions_ != nullptr) ::fi_close(&completions_->fid);
  if (domain_ != nullptr) ::fi_close(&domain_->fid);
  if (fabric_ != nullptr) ::fi_close(&fabric_->fid);
}

Status OfiRail::learn(const std::vector<std::string>& addresses) {
  peers_.assign(addresses.size(), FI_ADDR_UNSPEC);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i].empty()) continue;
    const int inserted = ::fi_av_insert(addresses_, addresses[i].data(), 1, &peers_[i], 0, nullptr);
    if (inserted != 1) return failed("fi_av_insert", inserted < 0 ? inserted : -FI_EINVAL);
  }
  return {};
}

// ---- Memory ----

Result<OfiRegion> OfiRail::register_memory(const void* begin, std::size_t bytes, uint64_t access) {
  fid_mr* memory = nullptr;
  int code = ::fi_mr_reg(domain_, begin, bytes, access, 0, next_key_++, 0, &memory, nullptr);
  if (code != 0) {
    const char* remedy =
        code == -FI_ENOMEM ? "; raise the limit of locked memory (ulimit -l), or in a container its memlock" : "";
    const Status why = failed("fi_mr_reg", code);
    return Status(why.code(), why.text() + remedy);
  }
  OfiRegion region(memory);
  if ((info_->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
    code = ::fi_mr_bind(memory, &endpoint_->fid, 0);
    if (code == 0) code = ::fi_mr_enable(memory);
    if (code != 0) return failed("fi_mr_enable", code);
  }
  return region;
}

Result<OfiRegion> OfiRail::register_target(Bytes bytes) {
  return register_memory(bytes.data(), bytes.size(), FI_REMOTE_WRITE);
}

Result<OfiRegion> OfiRail::register_source(ConstBytes bytes) {
  if ((info_->domain_attr->mr_mode & FI_MR_LOCAL) == 0) return OfiRegion();
  return register_memory(bytes.data(), bytes.size(), FI_SEND | FI_RECV | FI_WRITE);
}

// ---- Devices ----

namespace {

// What this transport needs, in the form that tcp, shm and efa all offer. Without FI_MR_LOCAL the provider registers
// sources itself, with a cache that notices freed memory.
OfiLibrary::Infos hints_for(const OfiLibrary& library, std::string_view provider, bool local_registration) {
  auto hints = library.make_info();
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode =
      FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | (local_registration ? FI_MR_LOCAL : 0);
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->cq_data_size = 4;
  if (!provider.empty()) hints->fabric_attr->prov_name = ::strdup(std::string(provider).c_str());
  return hints;
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

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) words.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

Result<std::vector<OfiLibrary::Infos>> choose_devices(const OfiLibrary& library, std::string_view provider,
                                                      const Config& config) {
  auto found = library.find(hints_for(library, provider, false).get());
  if (!found.ok()) found = library.find(hints_for(library, provider, true).get());
  if (!found.ok()) {
    return Status(
        Code::unsupported,
        fmt::format("ofi: {} offers no provider{}{} with messages and remote writes: {}; `fi_info` lists what "
                    "there is",
                    library.description(), provider.empty() ? "" : " ", provider, found.status().text()));
  }
  std::vector<const fi_info*> offers;
  for (const fi_info* info = found->get(); info != nullptr; info = info->next) {
    const std::string_view name = info->fabric_attr->prov_name;
    if (provider.empty() ? name != "shm" : is_provider(name, provider)) offers.push_back(info);
  }
  if (!offers.empty()) {  // one provider, the first
    const std::string first = offers.front()->fabric_attr->prov_name;
    std::erase_if(offers, [&](const fi_info* info) { return first != info->fabric_attr->prov_name; });
  }
  const std::vector<std::string> named = words_of(config.ofi_devices);
  std::vector<OfiLibrary::Infos> chosen;
  std::set<std::string> taken;
  const auto take = [&](const fi_info* info) {
    if (taken.insert(info->domain_attr->name).second) chosen.push_back(library.copy(info));
  };
  if (!named.empty()) {
    for (const std::string& device : named) {
      const auto at = std::ranges::find_if(offers, [&](const fi_info* i) { return i->domain_attr->name == device; });
      if (at != offers.end()) {
        take(*at);
        continue;
      }
      std::set<std::string> present;
      for (const fi_info* info : offers) present.insert(info->domain_attr->name);
      return Status(Code::invalid_argument,
                    fmt::format("ofi: FARANDOLE_OFI_DEVICES names {}, which provider {} does not have; it has {}",
                                device, provider, fmt::join(present, ", ")));
    }
  } else if (!offers.empty() && is_over_ip(offers.front())) {
    FDL_ASSIGN_OR_RETURN(const auto addresses, addresses_of_interfaces(config.interfaces, 0, false));
    for (const Address& address : addresses) {
      const auto at = std::ranges::find_if(offers, [&](const fi_info* info) {
        const std::string ip = ip_of(info);
        return !ip.empty() && address.text.find(ip + ":") != std::string::npos;
      });
      if (at == offers.end()) continue;
      take(*at);
      break;
    }
  } else {
    for (const fi_info* info : offers) take(info);
  }
  if (chosen.empty()) {
    return Status(Code::unsupported, fmt::format("ofi: {} has no device of provider {} that reaches other hosts",
                                                 library.description(), provider.empty() ? "any" : provider));
  }
  return chosen;
}

}  // namespace fdl
