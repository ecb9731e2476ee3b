// Task is a program of a simulated process: a coroutine that waits for conditions of the simulation. Destroying a task
// ends it where it waits, as a kill ends a process.
//
// Await variables only: gcc 12 destroys temporaries in the operand of co_await twice.
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

namespace fdl::simulation {

template <typename T>
class Task;

namespace task_detail {

struct PromiseBase {
  std::coroutine_handle<> caller = nullptr;
  std::suspend_always initial_suspend() noexcept { return {}; }
  struct Final {
    bool await_ready() noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) noexcept {
      return ended.promise().caller ? ended.promise().caller : std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };
  Final final_suspend() noexcept { return {}; }
  [[noreturn]] void unhandled_exception() { std::terminate(); }
};

template <typename T>
struct Promise : PromiseBase {
  std::optional<T> value;
  Task<T> get_return_object();
  template <typename From>
  void return_value(From&& from) {
    value.emplace(std::forward<From>(from));
  }
  T take() { return std::move(*value); }
};

template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object();
  void return_void() {}
  void take() {}
};

}  // namespace task_detail

// It begins when it is started or awaited. A task that awaits another one owns it.
template <typename T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = task_detail::Promise<T>;

  Task() = default;
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  void start() { handle_.resume(); }
  bool is_done() const { return !handle_ || handle_.done(); }

  bool await_ready() const { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) {
    handle_.promise().caller = caller;
    return handle_;
  }
  T await_resume() { return handle_.promise().take(); }

 private:
  std::coroutine_handle<promise_type> handle_ = nullptr;
};

namespace task_detail {

template <typename T>
Task<T> Promise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<Promise<T>>::from_promise(*this));
}
inline Task<void> Promise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<Promise<void>>::from_promise(*this));
}

}  // namespace task_detail

}  // namespace fdl::simulation
