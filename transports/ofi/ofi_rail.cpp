// A rail is used by one thread at a time (FI_THREAD_DOMAIN).
#include "transports/ofi/ofi_rail.h"

#include <fmt/format.h>

#include <algorithm>

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

Result<OfiRegion> OfiRail::register_memory(ConstBytes bytes, bool is_target, bool is_source) {
  const uint64_t access = (is_target ? FI_REMOTE_WRITE : 0) | (is_source ? FI_SEND | FI_RECV | FI_WRITE : 0);
  fid_mr* memory = nullptr;
  int code = ::fi_mr_reg(domain_, bytes.data(), bytes.size(), access, 0, next_key_++, 0, &memory, nullptr);
  if (code != 0) {
    const bool is_full = code == -FI_ENOMEM || code == -FI_ENOSPC;
    const char* remedy = is_full ? "; raise the limit of locked memory (ulimit -l), or in a container its memlock" : "";
    const Status why = failed("fi_mr_reg", code);
    return Status(is_full ? Code::resource : why.code(), why.text() + remedy);
  }
  OfiRegion region(memory);
  if ((info_->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
    code = ::fi_mr_bind(memory, &endpoint_->fid, 0);
    if (code == 0) code = ::fi_mr_enable(memory);
    if (code != 0) return failed("fi_mr_enable", code);
  }
  return region;
}

}  // namespace fdl
