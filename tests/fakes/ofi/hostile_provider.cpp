// One lock guards everything. What has been sent waits in one list; each poll of a completion queue, of whichever
// endpoint, delivers some of it in random order.
#include "tests/fakes/ofi/hostile_provider.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/providers/fi_prov.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kInject = 32;
constexpr std::size_t kLongest = 200'000;  // of a message or write: long slices have many segments
constexpr std::size_t kMtu = 8192;         // of a message over efa-direct
constexpr std::size_t kQueue = 48;         // receives and sends in flight of an endpoint
constexpr int kMrMode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
constexpr const char* kDirect = "efa-direct";

[[noreturn]] void accuse(const char* what) {
  std::fprintf(stderr, "hostile provider: %s\n", what);
  std::abort();
}
void demand(bool holds, const char* what) {
  if (!holds) accuse(what);
}

struct Fabric {
  fid_fabric fid{};
};
struct Domain {
  fid_domain fid{};
  int device = 0;
  bool is_direct = false;
  bool local_registration = true;
};
struct Completion {
  fi_cq_data_entry entry{};
  int delay = 0;  // polls that do not see it yet
  int error = 0;
  int detail = 0;
};
struct Queue {
  fid_cq fid{};
  bool is_lost = false;
  std::vector<Completion> waiting;
  std::deque<Completion> errors;
};
struct Table {
  fid_av fid{};
  std::vector<uint64_t> endpoints;  // by fi_addr_t
};
struct Region {
  fid_mr fid{};
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  uint64_t access = 0;
  uint64_t file = 0;  // the number of the mapped file; 0: none
  bool enabled = false;
};
struct Receive {
  std::byte* bytes = nullptr;
  std::size_t length = 0;
  void* context = nullptr;
};
struct Endpoint {
  fid_ep fid{};
  uint64_t id = 0;
  int number = 0;  // in the order of opening
  int device = 0;
  bool is_direct = false;
  bool local_registration = true;
  bool is_lost = false;
  bool is_frozen = false;
  Queue* queue = nullptr;
  Table* table = nullptr;
  bool enabled = false;
  std::vector<Receive> receives;
  int in_flight = 0;
};

// What travels: a message, or a write.
struct Parcel {
  uint64_t from = 0;
  uint64_t to = 0;
  uint64_t number = 0;  // the order in which they were sent
  int delay = 0;
  bool is_write = false;
  std::vector<std::byte> copy;       // of an injected message
  const std::byte* bytes = nullptr;  // of all others, read at delivery
  std::size_t length = 0;
  uint64_t address = 0;
  uint64_t key = 0;
  uint64_t data = 0;
  void* descriptor = nullptr;
  void* context = nullptr;  // null: no completion
  bool fails = false;
};

struct World {
  std::mutex mutex;
  std::mt19937_64 random{1};
  int devices = 2;
  uint64_t next = 1;
  std::map<uint64_t, Endpoint*> endpoints;
  std::map<uint64_t, Region*> regions;  // by key
  std::map<uint64_t, uint64_t> newest;  // number of the last parcel that was delivered, by endpoint
  std::set<void*> contexts;             // in flight
  std::vector<Parcel> parcels;
  HostileCounts counts{};
  int failures = 0;
  int code = 0;
  int refusals = 0;  // calls to refuse in the present burst
  bool offers_efa = true;
  bool offers_direct = false;
  bool local_registration = true;
  int opened = 0;  // endpoints
  struct Fault {
    bool is_set = false;
    int after = 0;
    int error = 0;
  };
  Fault faults[3];  // by HostileCall
};
World& world() {
  static World& only = *new World;
  return only;
}

int below(int limit) { return static_cast<int>(world().random() % static_cast<uint64_t>(limit)); }

// Refuses one call in sixteen, and up to five calls after it.
bool refuses() {
  World& w = world();
  if (w.refusals == 0 && below(16) == 0) w.refusals = 1 + below(5);
  if (w.refusals == 0) return false;
  --w.refusals;
  ++w.counts.refused;
  return true;
}

// Returns the error with which this call must fail, or 0.
int fault_of(HostileCall call) {
  World::Fault& fault = world().faults[call];
  if (!fault.is_set || fault.after-- > 0) return 0;
  fault.after = 0;
  return fault.error;
}

// The number of the file that is mapped at an address; 0 for other memory.
uint64_t file_at(const void* address) {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  if (maps == nullptr) return 0;
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  uint64_t found = 0;
  char line[512];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long begin = 0, end = 0, file = 0;
    if (std::sscanf(line, "%lx-%lx %*s %*s %*s %lu", &begin, &end, &file) == 3 && wanted >= begin && wanted < end) {
      found = file;
    }
  }
  std::fclose(maps);
  return found;
}

// A device keeps the pages that it registered, whatever is mapped at their addresses later.
void check_mapping(const Region& region) {
  if (region.file == 0) return;
  demand(file_at(region.begin) == region.file, "a registration of memory that has been unmapped since");
}

Endpoint* endpoint_of(fid_ep* fid) { return reinterpret_cast<Endpoint*>(fid); }

void check_registered(const Endpoint* endpoint, const void* bytes, std::size_t length, void* descriptor) {
  if (length == 0 || !endpoint->local_registration) return;
  for (const auto& [key, region] : world().regions) {
    if (region != descriptor) continue;
    const auto* begin = static_cast<const std::byte*>(bytes);
    demand(region->enabled, "memory is used before it is bound and enabled");
    demand(begin >= region->begin && begin + length <= region->begin + region->bytes, "a descriptor of other memory");
    check_mapping(*region);
    return;
  }
  accuse("memory that is not registered");
}

void begin_context(void* context) {
  demand(context != nullptr, "an operation without a context");
  demand(world().contexts.insert(context).second, "a context that is in flight already");
}

void complete(Endpoint* endpoint, void* context, uint64_t flags, std::size_t length, uint64_t data, int error) {
  if (context != nullptr) world().contexts.erase(context);
  Completion completion;
  completion.entry = {.op_context = context, .flags = flags, .len = length, .buf = nullptr, .data = data};
  completion.delay = below(6);
  completion.error = error;
  completion.detail = world().code;
  if (error != 0) ++world().counts.failed;
  endpoint->queue->waiting.push_back(completion);
}

// ---- Delivery ----

// Returns false if the parcel has to wait for a receive.
bool deliver(Parcel& parcel) {
  World& w = world();
  const auto sender = w.endpoints.find(parcel.from);
  const auto finish = [&](int error) {
    if (parcel.context == nullptr || sender == w.endpoints.end()) return;
    --sender->second->in_flight;
    complete(sender->second, parcel.context, parcel.is_write ? FI_RMA | FI_WRITE : FI_MSG | FI_SEND, 0, 0, error);
  };
  const auto found = w.endpoints.find(parcel.to);
  if (parcel.fails) return finish(FI_EIO), true;
  if (found == w.endpoints.end()) {  // EFA tells after a time, with the code of a peer that does not respond
    w.code = 13;
    return finish(FI_EIO), true;
  }
  Endpoint* to = found->second;
  if (to->is_frozen || to->is_lost) return false;
  if (parcel.is_write) {
    const auto region = w.regions.find(parcel.key);
    auto* target = reinterpret_cast<std::byte*>(parcel.address);
    const bool fits = region != w.regions.end() && region->second->enabled &&
                      (region->second->access & FI_REMOTE_WRITE) != 0 && target >= region->second->begin &&
                      target + parcel.length <= region->second->begin + region->second->bytes;
    if (!fits) {
      ++w.counts.rejected;
      return finish(FI_EACCES), true;
    }
    void* consumed = nullptr;
    if (to->is_direct) {  // the number that comes with a write takes a receive
      if (to->receives.empty()) return false;
      const auto at = to->receives.begin() + below(static_cast<int>(to->receives.size()));
      consumed = at->context;
      to->receives.erase(at);
    }
    check_mapping(*region->second);
    std::memcpy(target, parcel.bytes, parcel.length);
    complete(to, consumed, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, parcel.length, parcel.data, 0);
    ++w.counts.writes;
  } else {
    if (to->receives.empty()) return false;
    const auto at = to->receives.begin() + below(static_cast<int>(to->receives.size()));
    demand(at->length >= parcel.length, "a message that is longer than its receive");
    std::memcpy(at->bytes, parcel.bytes != nullptr ? parcel.bytes : parcel.copy.data(), parcel.length);
    complete(to, at->context, FI_MSG | FI_RECV, parcel.length, 0, 0);
    to->receives.erase(at);
    ++w.counts.messages;
  }
  if (parcel.number < w.newest[parcel.to]) ++w.counts.overtaken;
  w.newest[parcel.to] = std::max(w.newest[parcel.to], parcel.number);
  finish(0);
  return true;
}

void deliver_some() {
  World& w = world();
  for (int i = 0; i < 8 && !w.parcels.empty(); ++i) {
    const auto at = static_cast<std::size_t>(below(static_cast<int>(w.parcels.size())));
    if (w.parcels[at].delay-- > 0 || !deliver(w.parcels[at])) continue;
    std::swap(w.parcels[at], w.parcels.back());
    w.parcels.pop_back();
  }
}

ssize_t post(Endpoint* endpoint, Parcel parcel, fi_addr_t to) {
  World& w = world();
  demand(endpoint->enabled, "an endpoint that is not enabled");
  demand(to < endpoint->table->endpoints.size(), "an address that is not in the table");
  parcel.from = endpoint->id;
  parcel.to = endpoint->table->endpoints[to];
  parcel.number = w.next++;
  parcel.delay = below(endpoint->device == 0 ? 4 : 16);
  if (parcel.context != nullptr && w.failures > 0) {
    --w.failures;
    parcel.fails = true;
  }
  w.parcels.push_back(std::move(parcel));
  return 0;
}

// ---- Messages and writes ----

ssize_t receive(fid_ep* fid, void* buffer, size_t length, void* descriptor, fi_addr_t, void* context) {
  const std::lock_guard lock(world().mutex);
  Endpoint* endpoint = endpoint_of(fid);
  if (endpoint->is_lost) return -FI_ENODEV;
  if (endpoint->receives.size() == kQueue || refuses()) return -FI_EAGAIN;
  check_registered(endpoint, buffer, length, descriptor);
  begin_context(context);
  endpoint->receives.push_back({static_cast<std::byte*>(buffer), length, context});
  return 0;
}

ssize_t send(fid_ep* fid, const void* buffer, size_t length, void* descriptor, fi_addr_t to, void* context) {
  const std::lock_guard lock(world().mutex);
  Endpoint* endpoint = endpoint_of(fid);
  demand(length <= (endpoint->is_direct ? kMtu : kLongest), "a message that is too long");
  if (endpoint->is_lost) return -FI_ENODEV;
  if (endpoint->in_flight == static_cast<int>(kQueue) || refuses()) return -FI_EAGAIN;
  check_registered(endpoint, buffer, length, descriptor);
  begin_context(context);
  ++endpoint->in_flight;
  Parcel parcel;
  parcel.bytes = static_cast<const std::byte*>(buffer);
  parcel.length = length;
  parcel.descriptor = descriptor;
  parcel.context = context;
  return post(endpoint, std::move(parcel), to);
}

ssize_t inject(fid_ep* fid, const void* buffer, size_t length, fi_addr_t to) {
  const std::lock_guard lock(world().mutex);
  demand(length <= kInject, "an injected message that is too long");
  if (endpoint_of(fid)->is_lost) return -FI_ENODEV;
  if (refuses()) return -FI_EAGAIN;
  Parcel parcel;
  parcel.copy.assign(static_cast<const std::byte*>(buffer), static_cast<const std::byte*>(buffer) + length);
  parcel.length = length;
  return post(endpoint_of(fid), std::move(parcel), to);
}

ssize_t write_data(fid_ep* fid, const void* buffer, size_t length, void* descriptor, uint64_t data, fi_addr_t to,
                   uint64_t address, uint64_t key, void* context) {
  const std::lock_guard lock(world().mutex);
  Endpoint* endpoint = endpoint_of(fid);
  demand(length <= kLongest, "a write that is too long");
  demand(data >> 32 == 0, "immediate data of more than 4 bytes");
  if (endpoint->is_lost) return -FI_ENODEV;
  if (endpoint->in_flight == static_cast<int>(kQueue) || refuses()) return -FI_EAGAIN;
  check_registered(endpoint, buffer, length, descriptor);
  begin_context(context);
  ++endpoint->in_flight;
  Parcel parcel;
  parcel.is_write = true;
  parcel.bytes = static_cast<const std::byte*>(buffer);
  parcel.length = length;
  parcel.address = address;
  parcel.key = key;
  parcel.data = data;
  parcel.descriptor = descriptor;
  parcel.context = context;
  return post(endpoint, std::move(parcel), to);
}

// ---- Completions ----

ssize_t read_completions(fid_cq* fid, void* buffer, size_t count) {
  const std::lock_guard lock(world().mutex);
  auto* queue = reinterpret_cast<Queue*>(fid);
  if (queue->is_lost) return -FI_ENODEV;
  deliver_some();
  auto* entries = static_cast<fi_cq_data_entry*>(buffer);
  std::size_t read = 0;
  for (std::size_t tries = queue->waiting.size(); tries > 0 && read < count && !queue->waiting.empty(); --tries) {
    const auto at = static_cast<std::size_t>(below(static_cast<int>(queue->waiting.size())));
    if (queue->waiting[at].delay-- > 0) continue;
    if (queue->waiting[at].error != 0) {
      queue->errors.push_back(queue->waiting[at]);
    } else {
      entries[read++] = queue->waiting[at].entry;
    }
    queue->waiting.erase(queue->waiting.begin() + static_cast<std::ptrdiff_t>(at));
  }
  if (read > 0) return static_cast<ssize_t>(read);
  return queue->errors.empty() ? -FI_EAGAIN : -FI_EAVAIL;
}

ssize_t read_error(fid_cq* fid, fi_cq_err_entry* entry, uint64_t) {
  const std::lock_guard lock(world().mutex);
  auto* queue = reinterpret_cast<Queue*>(fid);
  if (queue->errors.empty()) return -FI_EAGAIN;
  const Completion& first = queue->errors.front();
  *entry = {};
  entry->op_context = first.entry.op_context;
  entry->flags = first.entry.flags;
  entry->err = first.error;
  entry->prov_errno = first.detail;
  queue->errors.pop_front();
  return 1;
}

const char* describe(fid_cq*, int, const void*, char*, size_t) { return "an error of the hostile provider"; }

// ---- Objects ----

template <typename Object>
int close_plain(fid* fid) {
  const std::lock_guard lock(world().mutex);
  delete reinterpret_cast<Object*>(fid);
  return 0;
}

int close_endpoint(fid* fid) {
  const std::lock_guard lock(world().mutex);
  World& w = world();
  auto* endpoint = reinterpret_cast<Endpoint*>(fid);
  w.counts.cancelled += std::erase_if(w.parcels, [&](const Parcel& parcel) {
    if (parcel.from != endpoint->id || parcel.context == nullptr) return false;
    w.contexts.erase(parcel.context);
    return true;
  });
  for (const Receive& one : endpoint->receives) w.contexts.erase(one.context);
  w.endpoints.erase(endpoint->id);
  delete endpoint;
  return 0;
}

int close_region(fid* fid) {
  const std::lock_guard lock(world().mutex);
  auto* region = reinterpret_cast<Region*>(fid);
  for (const Parcel& parcel : world().parcels) {
    demand(parcel.descriptor != region, "the registration of a source ends while it is in flight");
  }
  world().regions.erase(region->fid.key);
  delete region;
  return 0;
}

int no_bind(fid*, fid*, uint64_t) { return 0; }
int no_control(fid*, int, void*) { return -FI_ENOSYS; }

int bind_endpoint(fid* fid, struct fid* other, uint64_t) {
  auto* endpoint = reinterpret_cast<Endpoint*>(fid);
  if (other->fclass == FI_CLASS_CQ) endpoint->queue = reinterpret_cast<Queue*>(other);
  if (other->fclass == FI_CLASS_AV) endpoint->table = reinterpret_cast<Table*>(other);
  return 0;
}
int control_endpoint(fid* fid, int command, void*) {
  auto* endpoint = reinterpret_cast<Endpoint*>(fid);
  if (command != FI_ENABLE || endpoint->queue == nullptr || endpoint->table == nullptr) return -FI_EINVAL;
  endpoint->enabled = true;
  return 0;
}
int control_region(fid* fid, int command, void*) {
  const std::lock_guard lock(world().mutex);
  if (command != FI_ENABLE) return -FI_EINVAL;
  reinterpret_cast<Region*>(fid)->enabled = true;
  return 0;
}
int name_of(fid_t fid, void* address, size_t* length) {
  const uint64_t id = reinterpret_cast<Endpoint*>(fid)->id;
  if (*length < sizeof id) return -FI_ETOOSMALL;
  std::memcpy(address, &id, *length = sizeof id);
  return 0;
}

template <int (*Close)(fid*), int (*Bind)(fid*, fid*, uint64_t) = no_bind,
          int (*Control)(fid*, int, void*) = no_control>
fi_ops* common() {
  static fi_ops ops = {.size = sizeof(fi_ops), .close = Close, .bind = Bind, .control = Control};
  return &ops;
}

int open_endpoint(fid_domain* domain, fi_info*, fid_ep** made, void*) {
  static fi_ops_msg messages = {.size = sizeof(fi_ops_msg), .recv = receive, .send = send, .inject = inject};
  static fi_ops_rma writes = {.size = sizeof(fi_ops_rma), .writedata = write_data};
  static fi_ops_cm names = {.size = sizeof(fi_ops_cm), .getname = name_of};
  const std::lock_guard lock(world().mutex);
  if (const int error = fault_of(hostile_open_endpoint); error != 0) return error;
  auto* endpoint = new Endpoint;
  endpoint->id = world().next++;
  endpoint->number = world().opened++;
  endpoint->device = reinterpret_cast<Domain*>(domain)->device;
  endpoint->is_direct = reinterpret_cast<Domain*>(domain)->is_direct;
  endpoint->local_registration = reinterpret_cast<Domain*>(domain)->local_registration;
  endpoint->fid.fid = {FI_CLASS_EP, nullptr, common<close_endpoint, bind_endpoint, control_endpoint>()};
  endpoint->fid.msg = &messages;
  endpoint->fid.rma = &writes;
  endpoint->fid.cm = &names;
  world().endpoints[endpoint->id] = endpoint;
  *made = &endpoint->fid;
  return 0;
}

int open_queue(fid_domain*, fi_cq_attr* attributes, fid_cq** made, void*) {
  static fi_ops_cq ops = {
      .size = sizeof(fi_ops_cq), .read = read_completions, .readerr = read_error, .strerror = describe};
  if (attributes->wait_obj != FI_WAIT_NONE || attributes->format != FI_CQ_FORMAT_DATA) return -FI_ENOSYS;
  auto* queue = new Queue;
  queue->fid.fid = {FI_CLASS_CQ, nullptr, common<close_plain<Queue>>()};
  queue->fid.ops = &ops;
  *made = &queue->fid;
  return 0;
}

int insert(fid_av* fid, const void* addresses, size_t count, fi_addr_t* made, uint64_t, void*) {
  auto* table = reinterpret_cast<Table*>(fid);
  {
    const std::lock_guard lock(world().mutex);
    if (const int error = fault_of(hostile_insert); error != 0) return error;
  }
  for (size_t i = 0; i < count; ++i) {
    uint64_t id = 0;
    std::memcpy(&id, static_cast<const std::byte*>(addresses) + i * sizeof id, sizeof id);
    made[i] = table->endpoints.size();
    table->endpoints.push_back(id);
  }
  return static_cast<int>(count);
}

int open_table(fid_domain*, fi_av_attr* attributes, fid_av** made, void*) {
  static fi_ops_av ops = {.size = sizeof(fi_ops_av), .insert = insert};
  if (attributes->type != FI_AV_TABLE) return -FI_ENOSYS;
  auto* table = new Table;
  table->fid.fid = {FI_CLASS_AV, nullptr, common<close_plain<Table>>()};
  table->fid.ops = &ops;
  *made = &table->fid;
  return 0;
}

int register_memory(fid*, const void* begin, size_t bytes, uint64_t access, uint64_t, uint64_t, uint64_t, fid_mr** made,
                    void*) {
  const std::lock_guard lock(world().mutex);
  if (bytes == 0) return -FI_EINVAL;
  if (const int error = fault_of(hostile_register); error != 0) return error;
  ++world().counts.registrations;
  auto* region = new Region;
  region->file = file_at(begin);
  region->begin = static_cast<const std::byte*>(begin);
  region->bytes = bytes;
  region->access = access;
  region->fid.fid = {FI_CLASS_MR, nullptr, common<close_region, no_bind, control_region>()};
  region->fid.mem_desc = region;
  region->fid.key = world().random() >> 1;
  world().regions[region->fid.key] = region;
  *made = &region->fid;
  return 0;
}

int open_domain(fid_fabric*, fi_info* info, fid_domain** made, void*) {
  static fi_ops_domain ops = {
      .size = sizeof(fi_ops_domain), .av_open = open_table, .cq_open = open_queue, .endpoint = open_endpoint};
  static fi_ops_mr memory = {.size = sizeof(fi_ops_mr), .reg = register_memory};
  auto* domain = new Domain;
  domain->device = std::atoi(info->domain_attr->name + std::strlen("hostile"));
  domain->is_direct = info->fabric_attr->name != nullptr && kDirect == std::string(info->fabric_attr->name);
  domain->local_registration = (info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
  domain->fid.fid = {FI_CLASS_DOMAIN, nullptr, common<close_plain<Domain>>()};
  domain->fid.ops = &ops;
  domain->fid.mr = &memory;
  *made = &domain->fid;
  return 0;
}

int open_fabric(fi_fabric_attr*, fid_fabric** made, void*) {
  static fi_ops_fabric ops = {.size = sizeof(fi_ops_fabric), .domain = open_domain};
  auto* fabric = new Fabric;
  fabric->fid.fid = {FI_CLASS_FABRIC, nullptr, common<close_plain<Fabric>>()};
  fabric->fid.ops = &ops;
  *made = &fabric->fid;
  return 0;
}

// Appends the offers of one fabric, if the hints allow them.
void offer(const fi_info* hints, const char* fabric, bool local_registration, std::vector<fi_info*>& offers) {
  const int mode = kMrMode | (local_registration ? FI_MR_LOCAL : 0);
  if (hints != nullptr) {
    const char* wanted = hints->fabric_attr->name;
    if (wanted != nullptr && std::string(wanted) != fabric) return;
    if ((hints->domain_attr->mr_mode & mode) != mode || (hints->mode & FI_CONTEXT2) == 0) return;
    if (fabric == std::string(kDirect) && (hints->mode & FI_RX_CQ_DATA) == 0) return;
    if (hints->ep_attr->type != FI_EP_RDM || (hints->caps & ~(FI_MSG | FI_RMA)) != 0) return;
  }
  for (int device = 0; device < world().devices; ++device) {
    fi_info* info = fi_allocinfo();
    info->caps = FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_WRITE | FI_REMOTE_WRITE;
    const bool is_direct = fabric == std::string(kDirect);
    info->mode = FI_CONTEXT2 | (is_direct ? FI_RX_CQ_DATA : 0);
    info->addr_format = FI_FORMAT_UNSPEC;
    info->ep_attr->type = FI_EP_RDM;
    info->ep_attr->max_msg_size = kLongest;
    info->tx_attr->size = info->rx_attr->size = kQueue;
    info->tx_attr->inject_size = kInject;
    info->domain_attr->name = ::strdup(("hostile" + std::to_string(device)).c_str());
    info->domain_attr->mr_mode = mode;
    info->domain_attr->av_type = FI_AV_TABLE;
    info->domain_attr->cq_data_size = 4;
    info->domain_attr->threading = FI_THREAD_SAFE;
    info->fabric_attr->name = ::strdup(fabric);
    offers.push_back(info);
  }
}

int get_info(uint32_t, const char*, const char*, uint64_t, const fi_info* hints, fi_info** found) {
  const std::lock_guard lock(world().mutex);
  std::vector<fi_info*> offers;
  if (world().offers_direct) offer(hints, kDirect, true, offers);  // libfabric lists it first
  if (world().offers_efa) offer(hints, "efa", world().local_registration, offers);
  if (offers.empty()) return -FI_ENODATA;
  for (std::size_t i = 0; i + 1 < offers.size(); ++i) offers[i]->next = offers[i + 1];
  *found = offers.front();
  return 0;
}

}  // namespace

extern "C" {

FI_EXT_INI {
  static fi_provider provider = {.version = FI_VERSION(255, 0),
                                 .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
                                 .name = "efa",
                                 .getinfo = get_info,
                                 .fabric = open_fabric,
                                 .cleanup = [] {}};
  return &provider;
}

__attribute__((visibility("default"))) void hostile_begin(uint64_t seed, int devices) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  w.random.seed(seed);
  w.devices = devices;
  w.counts = {};
  w.failures = 0;
  w.opened = 0;
  w.offers_efa = true;
  w.offers_direct = false;
  w.local_registration = true;
  for (World::Fault& fault : w.faults) fault = {};
}

__attribute__((visibility("default"))) void hostile_offer(int efa, int direct, int local_registration) {
  const std::lock_guard lock(world().mutex);
  world().offers_efa = efa != 0;
  world().offers_direct = direct != 0;
  world().local_registration = local_registration != 0;
}

__attribute__((visibility("default"))) void hostile_break(HostileCall call, int after, int error) {
  const std::lock_guard lock(world().mutex);
  world().faults[call] = {true, after, error};
}

__attribute__((visibility("default"))) void hostile_lose_device(int device) {
  const std::lock_guard lock(world().mutex);
  for (auto& [id, endpoint] : world().endpoints) {
    if (endpoint->device != device) continue;
    endpoint->is_lost = endpoint->queue->is_lost = true;
  }
}

__attribute__((visibility("default"))) void hostile_freeze(int number) {
  const std::lock_guard lock(world().mutex);
  for (auto& [id, endpoint] : world().endpoints) endpoint->is_frozen |= endpoint->number == number;
}

__attribute__((visibility("default"))) void hostile_fail(int count, int efa_code) {
  const std::lock_guard lock(world().mutex);
  world().failures = count;
  world().code = efa_code;
}

__attribute__((visibility("default"))) HostileCounts hostile_counts() {
  const std::lock_guard lock(world().mutex);
  return world().counts;
}
}
