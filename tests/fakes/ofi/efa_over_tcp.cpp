// A provider of libfabric that answers to the name `efa` and sends everything through the provider tcp;ofi_rxm, so that
// jobs of processes run as they do on hosts with EFA devices.
//
// FAKE_EFA_DEVICES: how many devices it has (1), named efa_0, efa_1 ... FAKE_EFA_LOST: a file; once it exists, the
// devices of this process are gone. Where it is set, endpoints stay open until the process ends: EFA cancels a write
// that has half come, and ofi_rxm 1.17 reads a null pointer when it does.
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr const char* kReal = "tcp;ofi_rxm";

// The first offer of the real provider, which all devices stand for.
fi_info* real = nullptr;

void replace(char*& text, const char* with) {
  std::free(text);
  text = with == nullptr ? nullptr : ::strdup(with);
}

// The description of a device as the real provider made it.
fi_info* real_of(const fi_info* shown) {
  fi_info* info = fi_dupinfo(shown);
  replace(info->fabric_attr->prov_name, kReal);
  replace(info->fabric_attr->name, real->fabric_attr->name);
  replace(info->domain_attr->name, real->domain_attr->name);
  info->fabric_attr->prov_version = real->fabric_attr->prov_version;
  info->addr_format = real->addr_format;
  return info;
}

int get_info(uint32_t version, const char* node, const char* service, uint64_t flags, const fi_info* hints,
             fi_info** found) {
  const char* count = std::getenv("FAKE_EFA_DEVICES");
  const int devices = count == nullptr ? 1 : std::atoi(count);
  fi_info* wanted = hints == nullptr ? fi_allocinfo() : fi_dupinfo(hints);
  if (wanted->fabric_attr->name != nullptr || devices == 0) return fi_freeinfo(wanted), -FI_ENODATA;
  if (wanted->ep_attr->type == FI_EP_UNSPEC) wanted->ep_attr->type = FI_EP_RDM;
  replace(wanted->fabric_attr->prov_name, kReal);
  fi_info* offers = nullptr;
  const int code = fi_getinfo(version, node, service, flags, wanted, &offers);
  fi_freeinfo(wanted);
  if (code != 0) return code;
  if (real == nullptr) real = fi_dupinfo(offers);
  fi_freeinfo(offers);
  fi_info* first = nullptr;
  for (int device = devices - 1; device >= 0; --device) {
    fi_info* info = fi_dupinfo(real);
    replace(info->fabric_attr->prov_name, nullptr);
    replace(info->fabric_attr->name, "efa");
    replace(info->domain_attr->name, ("efa_" + std::to_string(device) + "-rdm").c_str());
    info->addr_format = FI_FORMAT_UNSPEC;
    info->nic = nullptr;
    info->next = first;
    first = info;
  }
  *found = first;
  return 0;
}

// ---- The calls of the real objects, with what this provider changes ----

// Keeps the functions of a real object beside the changed ones. One provider makes all objects of a kind.
template <typename Ops>
struct Changed {
  Ops real{};
  Ops changed{};
  Ops* of(Ops* ops) {
    if (changed.size == 0) real = changed = *ops;
    return &changed;
  }
};
Changed<fi_ops_fabric> fabric_ops;
Changed<fi_ops_domain> domain_ops;
Changed<fi_ops_cq> queue_ops;
Changed<fi_ops> endpoint_ops;

const char* const lost = std::getenv("FAKE_EFA_LOST");

ssize_t read_queue(fid_cq* queue, void* entries, size_t count) {
  static unsigned calls = 0;
  if (lost != nullptr && ++calls % 64 == 0 && ::access(lost, F_OK) == 0) return -FI_ENODEV;
  return queue_ops.real.read(queue, entries, count);
}

int open_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** queue, void* context) {
  const int code = domain_ops.real.cq_open(domain, attributes, queue, context);
  if (code != 0) return code;
  (*queue)->ops = queue_ops.of((*queue)->ops);
  queue_ops.changed.read = read_queue;
  return 0;
}

int open_endpoint(fid_domain* domain, fi_info* shown, fid_ep** endpoint, void* context) {
  fi_info* info = real_of(shown);
  const int code = domain_ops.real.endpoint(domain, info, endpoint, context);
  fi_freeinfo(info);
  if (code != 0 || lost == nullptr) return code;
  (*endpoint)->fid.ops = endpoint_ops.of((*endpoint)->fid.ops);
  endpoint_ops.changed.close = [](fid*) { return 0; };
  return 0;
}

int open_domain(fid_fabric* fabric, fi_info* shown, fid_domain** domain, void* context) {
  fi_info* info = real_of(shown);
  const int code = fabric_ops.real.domain(fabric, info, domain, context);
  fi_freeinfo(info);
  if (code != 0) return code;
  (*domain)->ops = domain_ops.of((*domain)->ops);
  domain_ops.changed.endpoint = open_endpoint;
  domain_ops.changed.cq_open = open_queue;
  return 0;
}

int open_fabric(fi_fabric_attr*, fid_fabric** fabric, void* context) {
  const int code = fi_fabric(real->fabric_attr, fabric, context);
  if (code != 0) return code;
  (*fabric)->ops = fabric_ops.of((*fabric)->ops);
  fabric_ops.changed.domain = open_domain;
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
}
