// This file loads the candidates for NCCL's network plugin.
#include "bootstrap/topology/nccl_plugin.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <string_view>
#include <vector>

#include "base/split_list.h"

namespace fdl {
namespace {

// The versions of the plugin's interface that NCCL 2.12 to 2.30 take.
constexpr std::array kInterfaces = {"ncclNetPlugin_v5", "ncclNetPlugin_v6",  "ncclNetPlugin_v7", "ncclNetPlugin_v8",
                                    "ncclNetPlugin_v9", "ncclNetPlugin_v10", "ncclNetPlugin_v11"};

std::string path_of(void* library) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return {};
  return map->l_name;
}

bool has_interface(void* library) {
  for (const char* name : kInterfaces) {
    if (::dlsym(library, name) != nullptr) return true;
  }
  return false;
}

// The library in this file, or what is wrong with it.
NcclPlugin open(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = ::dlerror();
    return {{}, error != nullptr ? error : file + " cannot be loaded"};
  }
  NcclPlugin plugin{path_of(library), {}};
  if (!has_interface(library)) plugin = {{}, plugin.path + " has no interface of a plugin (ncclNetPlugin_v5 to v11)"};
  ::dlclose(library);
  return plugin;
}

}  // namespace

NcclPlugin find_nccl_plugin(const Environment& environment) {
  const std::string given = environment.get("NCCL_NET_PLUGIN").value_or("");
  std::vector<std::string> files;
  for (const std::string& word : split_list(given)) {
    if (word.empty()) continue;
    if (word == "none") return {{}, "NCCL_NET_PLUGIN=none", true};
    files.push_back(word);
    files.push_back("libnccl-net-" + word + ".so");
  }
  if (files.empty()) files.emplace_back("libnccl-net.so");
  std::string why;
  for (const std::string& file : files) {
    NcclPlugin plugin = open(file);
    if (!plugin.path.empty()) return plugin;
    why += (why.empty() ? "" : "; ") + plugin.why;
  }
  return {{}, why};
}

}  // namespace fdl
