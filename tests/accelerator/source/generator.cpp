// The device's generators: a seed and an offset, as on a GPU. Each random operator draws from a CPU generator that is
// seeded by both, and moves the offset on.
#include <Python.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/Generator.h>

#include <array>
#include <cstring>

#include "device.h"

namespace toy {
namespace {

struct Generator final : c10::GeneratorImpl {
  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;

  explicit Generator(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(kToy, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  static c10::DeviceType device_type() { return kToy; }
  void set_current_seed(uint64_t seed) { seed_ = seed, offset_ = 0; }
  void set_offset(uint64_t offset) { offset_ = offset; }
  uint64_t get_offset() const { return offset_; }
  uint64_t current_seed() const { return seed_; }
  uint64_t seed() {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) {
    TORCH_CHECK(state.numel() == 16 && state.dtype() == at::kByte && state.is_cpu(), "toy: a state has 16 bytes on the CPU");
    auto* bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, 8);
    std::memcpy(&offset_, bytes + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const {
    auto state = at::detail::empty_cpu({16}, at::kByte);
    auto* bytes = static_cast<char*>(state.mutable_data_ptr());
    std::memcpy(bytes, &seed_, 8);
    std::memcpy(bytes + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }
  Generator* clone_impl() const {
    auto* copy = new Generator(device_.index());
    copy->seed_ = seed_, copy->offset_ = offset_;
    return copy;
  }
};

}  // namespace

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<Generator>(device < 0 ? current_device() : device);
}

// As CUDA's, they start at a seed that no script knows.
at::Generator seeded(c10::DeviceIndex device) {
  auto made = at::make_generator<Generator>(device);
  made.seed();
  return made;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto& all = *new std::array<at::Generator, kDevices>{seeded(0), seeded(1)};
  return all.at(device < 0 ? current_device() : device);
}

at::Generator draw(const at::Generator& generator) {
  auto* own = static_cast<Generator*>(generator.unsafeGetGeneratorImpl());
  std::lock_guard<std::mutex> lock(own->mutex_);
  auto mixed = (own->seed_ + own->offset_ * 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
  own->offset_ += 4;
  return at::make_generator<at::CPUGeneratorImpl>(mixed ^ (mixed >> 31));
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const { return true; }
  bool isAvailable() const { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const { return true; }
  c10::DeviceIndex deviceCount() const { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const {
    auto before = current_device();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const {
    return device < 0 ? current_device() : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device = -1) const { return new_generator(device); }
  bool isPinnedPtr(const void* pointer) const { return is_pinned(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const {
    auto guard = c10::DeviceGuard(storage.device());
    auto memory = allocator()->allocate(bytes);
    std::memcpy(memory.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(bytes);
  }
};

}  // namespace toy

extern "C" {
void toy_register() { at::RegisterPrivateUse1HooksInterface(new toy::Hooks()); }
PyObject* toy_default_generator(int device) { return THPGenerator_Wrap(toy::default_generator(device)); }
}
