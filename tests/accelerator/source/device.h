// What the files of the test accelerator share. The device is called "toy": its memory is host memory, its kernels
// are the CPU's, and its clock is virtual. See tests/accelerator/__init__.py.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace toy {

constexpr auto kToy = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;

// clock.cpp: when the device will have done what was asked of it, and who waited for that.
int64_t now_ns();
c10::Stream current_stream(c10::DeviceIndex device);
void enqueue(c10::DeviceIndex device, int64_t bytes);
void wait_for_stream(const c10::Stream& stream, const char* kind, const std::string& operation);
void wait_for_device(c10::DeviceIndex device, const char* kind, const std::string& operation);
void wait_until(int64_t end_ns, const char* kind, const std::string& operation);
int64_t end_of_stream(const c10::Stream& stream);
void delay_stream(const c10::Stream& stream, int64_t end_ns);
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);

// memory.cpp
c10::DeviceAllocator* allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);
// Let memory that a CPU kernel allocated count as the device's.
c10::DataPtr adopt(const c10::Storage& host, c10::DeviceIndex device);
void check_fork();
bool is_bad_fork();

// generator.cpp
const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);
// A CPU generator for one random operator; advances the device's generator.
at::Generator draw(const at::Generator& generator);

}  // namespace toy
