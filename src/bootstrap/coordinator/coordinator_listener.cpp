// CoordinatorListener opens a socket for each kind of rendezvous and publishes its address.
#include "bootstrap/coordinator/coordinator_listener.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <map>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "system/addresses.h"
#include "system/socket.h"

namespace fdl {
namespace {

constexpr double kPauseWithoutDescriptors_s = 0.1;
constexpr double kLastingShortage_s = 1;  // in which a program may have closed other files

// Coordinators of this process by name. Intentionally leaked, because a coordinator may outlive static objects.
struct Names {
  Mutex mutex;
  CondVar changed;
  std::map<std::string, std::string> addresses FDL_GUARDED_BY(mutex);
};
Names& names() {
  static auto* all = new Names;
  return *all;
}

Result<Listening> listen_at(const Address& address) {
  FDL_ASSIGN_OR_RETURN(const SocketAddress where, parse_address(address));
  UniqueFd fd(::socket(where.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return Status::from_errno("socket");
  const int yes = 1;
  if (where.family() != AF_UNIX) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(fd.get(), where.raw(), where.length) != 0) return Status::from_errno("bind to " + address.text);
  if (::listen(fd.get(), SOMAXCONN) != 0) return Status::from_errno("listen");
  SocketAddress bound;
  bound.length = sizeof bound.storage;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) {
    return Status::from_errno("getsockname");
  }
  return Listening{std::move(fd), {where.family() == AF_UNIX ? address : address_of(bound.raw(), bound.length)}};
}

// A loopback host means a job on one host, whose listener must not be reachable from others.
bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

Result<Listening> listen_at_port(const std::string& host, int port, const std::string& interfaces) {
  if (!is_loopback(host)) return listen_tcp(interfaces, port);
  return listen_at({host_and_port(host == "localhost" ? "127.0.0.1" : host, port)});
}

Rendezvous::Endpoint with_port(Rendezvous::Endpoint address, int port_base) {
  if (address.last_port == 0) address.first_port = address.last_port = port_base;
  return address;
}

Result<Listening> listen_at_first_free(const Rendezvous::Endpoint& address, const std::string& interfaces) {
  Status last;
  for (int port = address.first_port; port <= address.last_port; ++port) {
    auto listening = listen_at_port(address.host, port, interfaces);
    if (listening.ok()) return listening;
    last = listening.status();
    if (last.code() == Code::resource) break;
  }
  return last;
}

std::string tcp_text(const std::vector<Address>& addresses) {
  std::string text = "tcp://";
  for (const Address& address : addresses) text += (text.back() == '/' ? "" : ",") + address.text;
  return text;
}

}  // namespace

Result<std::unique_ptr<CoordinatorListener>> CoordinatorListener::open(const std::string& address,
                                                                       const std::string& interfaces, int port_base) {
  std::unique_ptr<CoordinatorListener> listener(new CoordinatorListener);
  const auto take = [&](Result<Listening> listening, bool unix_socket) -> Status {
    if (!listening.ok()) return listening.status().while_doing("opening the coordinator at " + address);
    listener->fd_ = std::move(listening->fd);
    listener->address_ = unix_socket ? listening->addresses.front().text : tcp_text(listening->addresses);
    return {};
  };
  if (address == "unix") {
    FDL_RETURN_IF_ERROR(take(listen_unix(), true));
    return listener;
  }
  FDL_ASSIGN_OR_RETURN(const Rendezvous rendezvous, parse_rendezvous(address));
  switch (rendezvous.kind) {
    case Rendezvous::Kind::tcp:
      FDL_RETURN_IF_ERROR(
          take(listen_at_first_free(with_port(rendezvous.endpoints.front(), port_base), interfaces), false));
      break;
    case Rendezvous::Kind::unix_socket:
      FDL_RETURN_IF_ERROR(take(listen_at({"unix:@" + rendezvous.name}), true));
      break;
    case Rendezvous::Kind::launcher:  // the caller passes address() on
      FDL_RETURN_IF_ERROR(take(listen_tcp(interfaces, port_base), false));
      break;
    case Rendezvous::Kind::file: {
      FDL_RETURN_IF_ERROR(take(listen_tcp(interfaces, port_base), false));
      FDL_ASSIGN_OR_RETURN(listener->file_, RendezvousFile::write(rendezvous.name, listener->address_));
      listener->address_ = "file://" + rendezvous.name;
      break;
    }
    case Rendezvous::Kind::memory: {
      FDL_RETURN_IF_ERROR(take(listen_unix(), true));
      const std::string reached_at = std::exchange(listener->address_, "memory://" + rendezvous.name);
      MutexLock lock(names().mutex);
      if (!names().addresses.emplace(rendezvous.name, reached_at).second) {
        return Status(Code::invalid_argument,
                      fmt::format("this process already has a coordinator at {}", listener->address_));
      }
      listener->memory_name_ = rendezvous.name;
      names().changed.notify_all();
      break;
    }
  }
  return listener;
}

CoordinatorListener::~CoordinatorListener() {
  if (!memory_name_.empty()) {
    MutexLock lock(names().mutex);
    names().addresses.erase(memory_name_);
  }
}

Status CoordinatorListener::watch(Poller& poller, uint64_t token) {
  token_ = token;
  return poller.add(fd_.get(), token_);
}

UniqueFd CoordinatorListener::accept(Poller& poller, std::string_view server) {
  auto accepted = accept_one(fd_.get());
  if (accepted.ok()) {
    shortage_ = {};  // also if no connection waits: the kernel looks for a free descriptor first
    return accepted.take();
  }
  if (shortage_.ok()) {
    log_warning("{}: {}; new connections wait", server, accepted.status().text());
    shortage_lasts_ = Deadline::after_seconds(kLastingShortage_s);
  }
  shortage_ = accepted.status();
  poller.remove(fd_.get());
  pause_ends_ = Deadline::after_seconds(kPauseWithoutDescriptors_s);
  return {};
}

Status CoordinatorListener::lasting_shortage() const { return shortage_lasts_.passed() ? shortage_ : Status(); }

void CoordinatorListener::resume(Poller& poller) {
  if (pause_ends_.passed() && poller.add(fd_.get(), token_).ok()) pause_ends_ = Deadline::never();
}

void CoordinatorListener::close(Poller& poller) {
  if (!fd_) return;
  if (pause_ends_.is_never()) poller.remove(fd_.get());
  pause_ends_ = Deadline::never();
  fd_.reset();
}

Result<std::string> find_in_memory(const std::string& name, Deadline deadline) {
  Names& all = names();
  MutexLock lock(all.mutex);
  if (!all.changed.wait(all.mutex, deadline, [&]() FDL_REQUIRES(all.mutex) { return all.addresses.contains(name); })) {
    return Status(Code::timeout, fmt::format("no coordinator of this process is at memory://{}", name));
  }
  return all.addresses[name];
}

}  // namespace fdl
