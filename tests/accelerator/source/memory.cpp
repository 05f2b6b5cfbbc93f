// The device's memory: host memory, counted per device, with a limit. Also pinned memory, and what a fork does.
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "device.h"

namespace toy {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

// Never destroyed: tensors are freed after the statics are.
auto& mutex = *new std::mutex;
auto& stats = *new std::array<DeviceStats, kDevices>;
std::atomic<int64_t> limit_bytes{int64_t(8) << 30};
std::atomic<bool> is_used{false}, is_forked{false};

void mark_fork() { if (is_used) is_forked = true; }

struct Block {
  c10::DataPtr own;       // allocated here, or
  c10::Storage adopted;   // allocated by a CPU kernel
  int64_t bytes;
  c10::DeviceIndex device;
};

void count(c10::DeviceIndex device, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  auto& own = stats.at(device);
  auto used = own.allocated_bytes[0].current;
  if (used + bytes > limit_bytes) {
    own.num_ooms++;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "toy out of memory. Tried to allocate ", bytes, " bytes. Device ", int(device),
        " has a total capacity of ", limit_bytes.load(), " bytes of which ", limit_bytes - used, " bytes are free.");
  }
  for (auto* stat : {&own.allocated_bytes[0], &own.active_bytes[0], &own.requested_bytes[0]}) stat->increase(bytes);
  for (auto* stat : {&own.allocation[0], &own.active[0]}) stat->increase(1);
  auto missing = own.allocated_bytes[0].current - own.reserved_bytes[0].current;
  if (missing > 0) {  // what is freed stays reserved until emptyCache()
    own.reserved_bytes[0].increase(missing);
    own.num_device_alloc++;
  }
}

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto& own = stats.at(block->device);
    for (auto* stat : {&own.allocated_bytes[0], &own.active_bytes[0], &own.requested_bytes[0]}) stat->decrease(block->bytes);
    for (auto* stat : {&own.allocation[0], &own.active[0]}) stat->decrease(1);
  }
  delete block;
}

int64_t rounded(size_t bytes) { return int64_t((bytes + 511) / 512 * 512); }

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) {
    check_fork();
    is_used = true;
    auto device = current_device();
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, c10::Device(kToy, device)};
    count(device, rounded(bytes));
    auto* block = new Block{c10::GetCPUAllocator()->allocate(bytes), {}, rounded(bytes), device};
    return {block->own.get(), block, &release, c10::Device(kToy, device)};
  }
  c10::DeleterFnPtr raw_deleter() const { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const { std::memcpy(to, from, bytes); }
  bool initialized() { return is_used; }
  void emptyCache(c10::MempoolId_t = {0, 0}) {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto& own : stats) own.reserved_bytes[0].decrease(own.reserved_bytes[0].current - own.allocated_bytes[0].current);
  }
  void recordStream(const c10::DataPtr&, c10::Stream) {}
  DeviceStats getDeviceStats(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex);
    return stats.at(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto* stat : all(stats.at(device))) stat->reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto* stat : all(stats.at(device))) stat->reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex);
    return {size_t(limit_bytes - stats.at(device).allocated_bytes[0].current), size_t(limit_bytes.load())};
  }
  static std::array<c10::CachingAllocator::Stat*, 6> all(DeviceStats& own) {
    return {&own.allocated_bytes[0], &own.active_bytes[0], &own.requested_bytes[0],
            &own.allocation[0], &own.active[0], &own.reserved_bytes[0]};
  }
};

Allocator the_allocator;
REGISTER_ALLOCATOR(kToy, &the_allocator);

auto& pinned = *new std::map<const char*, size_t>;  // by address: size

struct Pinned final : c10::Allocator {
  struct Range {
    c10::DataPtr memory;
  };
  static void unpin(void* context) {
    auto* range = static_cast<Range*>(context);
    {
      std::lock_guard<std::mutex> lock(mutex);
      pinned.erase(static_cast<const char*>(range->memory.get()));
    }
    delete range;
  }
  c10::DataPtr allocate(size_t bytes) {
    check_fork();
    auto* range = new Range{c10::GetCPUAllocator()->allocate(std::max<size_t>(bytes, 1))};
    std::lock_guard<std::mutex> lock(mutex);
    pinned[static_cast<const char*>(range->memory.get())] = std::max<size_t>(bytes, 1);
    return {range->memory.get(), range, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const { std::memcpy(to, from, bytes); }
};

Pinned the_pinned;

}  // namespace

c10::DeviceAllocator* allocator() { return &the_allocator; }
c10::Allocator* pinned_allocator() { return &the_pinned; }

bool is_pinned(const void* pointer) {
  std::lock_guard<std::mutex> lock(mutex);
  auto after = pinned.upper_bound(static_cast<const char*>(pointer));
  if (after == pinned.begin()) return false;
  auto& [start, size] = *--after;
  return static_cast<const char*>(pointer) < start + size;
}

c10::DataPtr adopt(const c10::Storage& host, c10::DeviceIndex device) {
  check_fork();
  is_used = true;
  auto bytes = rounded(host.nbytes());
  count(device, bytes);
  return {host.mutable_data(), new Block{{}, host, bytes, device}, &release, c10::Device(kToy, device)};
}

bool is_bad_fork() { return is_forked; }

void check_fork() {
  TORCH_CHECK(!is_forked, "Cannot re-initialize toy in forked subprocess. To use toy with multiprocessing, you must use "
              "the 'spawn' start method");
}

struct AtFork {
  AtFork() { pthread_atfork(nullptr, nullptr, &mark_fork); }
} at_fork;

}  // namespace toy

extern "C" {
void toy_set_limit(int64_t bytes) { toy::limit_bytes = bytes; }
bool toy_is_bad_fork() { return toy::is_bad_fork(); }
bool toy_is_initialized() { return toy::is_used; }
}
