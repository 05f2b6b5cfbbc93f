// The device's clock, streams, events and guard. An operator costs virtual time on its stream; the host does not wait
// for it. What makes a GPU's host wait sleeps here until that time, and is noted with the Python lines that led to it.
#include <Python.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "device.h"

namespace toy {
namespace {

struct Wait {
  std::string kind, operation;
  int64_t step, slept_ns;
  std::vector<std::pair<std::string, int>> frames;  // the innermost first; none on autograd's threads
};

// Never destroyed: other threads use them until the process has ended.
auto& mutex = *new std::mutex;
auto& stream_ends = *new std::map<std::pair<int, int64_t>, int64_t>;  // by device and stream
auto& waits = *new std::vector<Wait>;
std::atomic<int64_t> step{0}, kernel_ns{5000}, operators{0};
constexpr int64_t kBytesPerNs = 100;
std::atomic<int64_t> next_stream{1};
thread_local c10::DeviceIndex device_now = 0;
thread_local std::array<int64_t, kDevices> stream_now{};

std::vector<std::pair<std::string, int>> python_frames() {
  std::vector<std::pair<std::string, int>> found;
  if (!Py_IsInitialized()) return found;
  auto held = PyGILState_Ensure();
  auto* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr && found.size() < 100) {
    auto* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    found.emplace_back(file != nullptr ? file : "?", PyFrame_GetLineNumber(frame));
    Py_DECREF(code);
    auto* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  PyGILState_Release(held);
  return found;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (unsigned char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    result += letter < 0x20 ? ' ' : letter;
  }
  return result + "\"";
}

std::string as_json(const Wait& wait) {
  auto text = "{\"kind\":" + quoted(wait.kind) + ",\"operation\":" + quoted(wait.operation) +
      ",\"step\":" + std::to_string(wait.step) + ",\"slept_ns\":" + std::to_string(wait.slept_ns) + ",\"frames\":[";
  for (size_t i = 0; i < wait.frames.size(); ++i) {
    text += std::string(i ? "," : "") + "[" + quoted(wait.frames[i].first) + "," + std::to_string(wait.frames[i].second) + "]";
  }
  return text + "]}";
}

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : device_now;
}

}  // namespace

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

c10::DeviceIndex current_device() { return device_now; }

void set_current_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "toy: invalid device ordinal ", int(device), ", there are ", kDevices);
  device_now = device;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kToy, device), stream_now.at(device));
}

int64_t end_of_stream(const c10::Stream& stream) {
  std::lock_guard<std::mutex> lock(mutex);
  return stream_ends[{stream.device_index(), stream.id()}];
}

void delay_stream(const c10::Stream& stream, int64_t end_ns) {
  std::lock_guard<std::mutex> lock(mutex);
  auto& end = stream_ends[{stream.device_index(), stream.id()}];
  end = std::max(end, end_ns);
}

void enqueue(c10::DeviceIndex device, int64_t bytes) {
  operators++;
  auto now = now_ns();
  std::lock_guard<std::mutex> lock(mutex);
  auto& end = stream_ends[{device, stream_now.at(device)}];
  end = std::max(end, now) + kernel_ns + bytes / kBytesPerNs;
}

void wait_until(int64_t end_ns, const char* kind, const std::string& operation) {
  Wait wait{kind, operation, step, std::max<int64_t>(0, end_ns - now_ns()), python_frames()};
  if (wait.slept_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(wait.slept_ns));
  std::lock_guard<std::mutex> lock(mutex);
  waits.push_back(std::move(wait));
}

void wait_for_stream(const c10::Stream& stream, const char* kind, const std::string& operation) {
  wait_until(end_of_stream(stream), kind, operation);
}

void wait_for_device(c10::DeviceIndex device, const char* kind, const std::string& operation) {
  int64_t end = 0;
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto& [key, stream_end] : stream_ends)
      if (key.first == device) end = std::max(end, stream_end);
  }
  wait_until(end, kind, operation);
}

struct Event {
  int64_t end_ns;
};

// Not marked `override`: torch 2.9 to 2.15 differ in which of these they know.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const { return kToy; }
  c10::Device getDevice() const { return c10::Device(kToy, device_now); }
  c10::Device exchangeDevice(c10::Device device) const {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const { if (device.has_index()) set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept { if (device.has_index()) device_now = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept { return kDevices; }
#if __has_include(<c10/core/DeviceCapability.h>)
  c10::DeviceCapability getDeviceCapability(c10::Device) const { return {}; }
#endif

  c10::Stream getStream(c10::Device device) const { return current_stream(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kToy, index_of(device)));
  }
  c10::Stream getNewStream(c10::Device device, int = 0) const {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kToy, index_of(device)), next_stream++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool = false) const { return getNewStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const {
    auto before = current_stream(stream.device_index());
    stream_now.at(stream.device_index()) = stream.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const { return end_of_stream(stream) <= now_ns(); }
  void synchronizeStream(const c10::Stream& stream) const { wait_for_stream(stream, "synchronize", "stream"); }
  void synchronizeDevice(const c10::DeviceIndex device) const { wait_for_device(device, "synchronize", "device"); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const {
    if (*event == nullptr) *event = new Event();
    static_cast<Event*>(*event)->end_ns = std::max(end_of_stream(stream), now_ns());
  }
  void block(void* event, const c10::Stream& stream) const {
    if (event != nullptr) delay_stream(stream, static_cast<Event*>(event)->end_ns);
  }
  bool queryEvent(void* event) const { return event == nullptr || static_cast<Event*>(event)->end_ns <= now_ns(); }
  void synchronizeEvent(void* event) const {
    if (event != nullptr) wait_until(static_cast<Event*>(event)->end_ns, "synchronize", "event");
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept { delete static_cast<Event*>(event); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const {
    return double(static_cast<Event*>(second)->end_ns - static_cast<Event*>(first)->end_ns) / 1e6;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace toy

extern "C" {
int toy_current_device() { return toy::current_device(); }
int toy_device_count() { return toy::kDevices; }
int64_t toy_operators() { return toy::operators; }
int64_t toy_step() { return toy::step; }
void toy_next_step() { toy::step++; }
void toy_set_kernel_ns(int64_t ns) { toy::kernel_ns = ns; }
void toy_clear_waits() {
  std::lock_guard<std::mutex> lock(toy::mutex);
  toy::waits.clear();
}
// JSON lines; valid until the next call.
const char* toy_waits() {
  static std::string text;
  std::lock_guard<std::mutex> lock(toy::mutex);
  text.clear();
  for (auto& wait : toy::waits) text += as_json(wait) + "\n";
  return text.c_str();
}
}
