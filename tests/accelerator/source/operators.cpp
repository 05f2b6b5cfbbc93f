// The device's operators. Each runs the CPU's kernel on tensors that share the device's memory, so the bits are the
// CPU's. Copies and operators whose result the host must know wait, as on a GPU.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "device.h"

namespace toy {
namespace {

using at::Tensor;
using Stack = torch::jit::Stack;
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// The result's size, or a decision, is on the device: the host waits. See also `must_wait`.
const std::unordered_set<std::string> kWaiting{
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::unique_dim_consecutive", "aten::bincount", "aten::equal", "aten::multinomial"};
// These take tensors of the host besides the device's.
const std::unordered_set<std::string> kMixing{
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_pack_padded_sequence",
    "aten::_pad_packed_sequence", "aten::ctc_loss", "aten::_ctc_loss", "aten::_ctc_loss_backward"};

bool is_toy(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kToy; }

Tensor make_like(const c10::Storage& storage, c10::DispatchKeySet keys, const Tensor& other) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, other.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
  if (other.is_conj()) impl->_set_conj(true);
  if (other.is_neg()) impl->_set_neg(true);
  if (other.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return tensor;
}

// A storage of the CPU over the device's memory. A kernel may resize it; then it has memory of its own.
c10::Storage host_storage(const c10::Storage& storage) {
  auto bytes = storage.nbytes();
  c10::DataPtr memory(storage.mutable_data(), c10::Device(c10::kCPU));
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(memory), c10::GetAllocator(c10::kCPU), true);
}

Tensor as_host(const Tensor& tensor) {
  if (!is_toy(tensor)) return tensor;
  return make_like(host_storage(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor);
}

c10::Storage device_storage(const c10::Storage& host, c10::DeviceIndex device) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), host.nbytes(), adopt(host, device), allocator(), true);
}

// One call of an operator: which tensor of the CPU stands for which of the device.
struct Call {
  const std::string& name;
  bool is_mixing;
  c10::DeviceIndex device = -1;
  int64_t bytes = 0;
  bool is_work = false;
  std::vector<std::pair<Tensor, Tensor>> pairs;  // of the device, of the CPU
  std::unordered_map<c10::StorageImpl*, c10::Storage> host_of, device_of;

  void set_device(c10::Device found) {
    auto index = found.has_index() ? found.index() : current_device();
    TORCH_CHECK(
        device < 0 || device == index, "Expected all tensors to be on the same device, but found at least two devices, toy:",
        int(device), " and toy:", int(index), "! (when calling ", name, ")");
    device = index;
  }

  Tensor to_host(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!is_toy(tensor)) {
      TORCH_CHECK(
          !tensor.is_cpu() || tensor.dim() == 0 || is_mixing,
          "Expected all tensors to be on the same device, but found at least two devices, toy and cpu! (when calling ",
          name, ")");
      return tensor;
    }
    set_device(tensor.device());
    for (auto& [own, host] : pairs)
      if (own.is_same(tensor)) return host;
    bytes += int64_t(tensor.nbytes());
    auto* key = tensor.storage().unsafeGetStorageImpl();
    auto found = host_of.find(key);
    if (found == host_of.end()) found = host_of.emplace(key, host_storage(tensor.storage())).first;
    device_of.emplace(found->second.unsafeGetStorageImpl(), tensor.storage());
    pairs.emplace_back(tensor, make_like(found->second, c10::DispatchKeySet(c10::DispatchKey::CPU), tensor));
    return pairs.back().second;
  }

  Tensor to_device(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cpu()) return tensor;
    for (auto& [own, host] : pairs)
      if (host.is_same(tensor)) return own;
    auto* key = tensor.storage().unsafeGetStorageImpl();
    auto found = device_of.find(key);
    if (found == device_of.end()) {
      is_work = true;
      bytes += int64_t(tensor.nbytes());
      found = device_of.emplace(key, device_storage(tensor.storage(), device)).first;
    }
    return make_like(found->second, kKeys, tensor);
  }

  // A kernel may have resized what it was given to write into.
  void write_back() {
    for (auto& [own, host] : pairs) {
      auto storage = own.storage();
      if (storage.data() != host.storage().data()) {
        storage.set_data_ptr_noswap(adopt(host.storage(), device));
        storage.set_nbytes(host.storage().nbytes());
      }
      if (own.sizes() != host.sizes() || own.strides() != host.strides())
        own.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }

  c10::IValue to_host(const c10::IValue& value) {
    if (value.isTensor()) return to_host(value.toTensor());
    if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      for (auto& tensor : tensors) tensor = to_host(tensor);
      return tensors;
    }
    if (value.isOptionalTensorList()) {
      auto tensors = value.toOptionalTensorVector();
      for (auto& tensor : tensors)
        if (tensor) tensor = to_host(*tensor);
      return tensors;
    }
    if (value.isDevice() && value.toDevice().type() == kToy) {
      set_device(value.toDevice());
      return c10::Device(c10::kCPU);
    }
    return value;
  }

  c10::IValue to_device(const c10::IValue& value) {
    if (value.isTensor()) return to_device(value.toTensor());
    if (!value.isTensorList()) return value;
    auto tensors = value.toTensorVector();
    for (auto& tensor : tensors) tensor = to_device(tensor);
    return tensors;
  }
};

bool is_mask(const c10::IValue& indices) {
  for (auto& index : indices.toOptionalTensorVector())
    if (index && index->defined() && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte)) return true;
  return false;
}

bool is_on_host(const c10::IValue& indices) {
  for (auto& index : indices.toOptionalTensorVector())
    if (index && index->defined() && index->is_cpu()) return true;
  return false;
}

bool must_wait(const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  if (kWaiting.count(name)) return true;
  if (name == "aten::index") return is_mask(arguments[1]) || is_on_host(arguments[1]);
  if (name == "aten::_index_put_impl_")
    return is_on_host(arguments[1]) || (is_mask(arguments[1]) && arguments[2].toTensor().numel() != 1);  // else masked_fill
  if (name == "aten::repeat_interleave") return arguments.back().isNone();
  return false;
}

bool takes_generator(const c10::Argument& argument) {
  return argument.type()->kind() == c10::TypeKind::OptionalType && argument.name() == "generator";
}

void run(const c10::OperatorHandle& op, const c10::OperatorHandle& kernel, Stack* stack) {
  auto& schema = kernel.schema();
  auto& name = op.schema().name();
  auto start = stack->size() - schema.arguments().size();
  Call call{name, kMixing.count(name) > 0 || name.compare(0, 14, "aten::_foreach") == 0};
  auto is_waiting = must_wait(name, c10::ArrayRef<c10::IValue>(*stack).slice(start));
  for (auto i = start; i < stack->size(); ++i) (*stack)[i] = call.to_host((*stack)[i]);
  if (call.device < 0) call.device = current_device();
  for (auto i = start; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isGenerator() && value.toGenerator().device().type() == kToy) value = draw(value.toGenerator());
    if (value.isNone() && takes_generator(schema.arguments()[i - start])) value = draw(default_generator(call.device));
  }
  kernel.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.write_back();
  for (auto i = stack->size() - schema.returns().size(); i < stack->size(); ++i) (*stack)[i] = call.to_device((*stack)[i]);
  if (call.is_work || schema.is_mutable() || is_waiting) enqueue(call.device, call.bytes);
  if (is_waiting) wait_for_stream(current_stream(call.device), "result", name);
}

void fallback(const c10::OperatorHandle& op, Stack* stack) { run(op, op, stack); }

void convolution(const c10::OperatorHandle& op, Stack* stack) {
  static auto kernel = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  run(op, kernel, stack);
}

void convolution_backward(const c10::OperatorHandle& op, Stack* stack) {
  static auto kernel = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  auto weight = torch::jit::peek(*stack, 2, 10).toTensor();
  auto is_transposed = torch::jit::peek(*stack, 6, 10).toBool();
  auto groups = torch::jit::peek(*stack, 8, 10).toInt();
  std::vector<int64_t> bias{is_transposed ? weight.size(1) * groups : weight.size(0)};
  stack->insert(stack->end() - 7, c10::IValue(bias));
  run(op, kernel, stack);
}

Tensor empty(
    c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>, std::optional<c10::Device> device,
    std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<c10::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, allocator(), kKeys, c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool is_non_blocking) {
  auto device = (is_toy(to) ? to : from).device().index();
  as_host(to).copy_(as_host(from));
  enqueue(device, int64_t(to.nbytes()));
  auto stream = current_stream(device);
  if (is_toy(from) && is_toy(to)) {
    if (from.device() != to.device()) delay_stream(current_stream(from.device().index()), end_of_stream(stream));
  } else if (is_toy(to)) {
    if (!is_non_blocking) wait_for_stream(stream, "copy", "copy to device");
  } else if (!is_non_blocking || !is_pinned(to.storage().data())) {
    wait_for_stream(stream, "copy", "copy to host");
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  wait_for_stream(current_stream(self.device().index()), "item", "item");
  return at::_local_scalar_dense(as_host(self));
}

const Tensor& resize_(const Tensor& self, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  auto bytes = impl->numel() == 0 ? 0 : size_t(impl->numel() + impl->storage_offset()) * impl->itemsize();
  auto storage = self.storage();
  if (storage.nbytes() < bytes) {
    c10::DeviceGuard guard(self.device());
    auto memory = allocator()->allocate(bytes);
    std::memcpy(memory.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(bytes);
  }
  if (format && *format != c10::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return self;
}

Tensor as_strided(const Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

Tensor view(const Tensor& self, c10::IntArrayRef sizes) { return at::native::view(self, sizes); }

Tensor& set_all(Tensor& self, at::Storage storage, int64_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (strides.empty() && !sizes.empty()) {
    impl->set_sizes_contiguous(sizes);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage storage) {
  std::vector<int64_t> sizes{int64_t(storage.nbytes() / self.dtype().itemsize())};
  return set_all(self, std::move(storage), 0, sizes, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& other) {
  return set_all(self, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}

// The CPU's kernel would draw from the CPU's generator.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> is_training) {
  if (!is_training.value_or(true) || p == 0) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  auto mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0 : 1 / (1 - p)), mask};
}

// Torch calls these for recurrent layers, as on CUDA; the CPU has none. Autograd differentiates what they call.
Tensor add_bias(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(
    const Tensor& input, const Tensor& hidden, const Tensor& cell, const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias) {
  auto gates = (add_bias(input, input_bias) + add_bias(hidden, hidden_bias)).chunk(4, 1);
  auto new_cell = gates[1].sigmoid() * cell + gates[0].sigmoid() * gates[2].tanh();
  return {gates[3].sigmoid() * new_cell.tanh(), new_cell, at::empty({0}, input.options())};
}

std::tuple<Tensor, Tensor> gru_cell(
    const Tensor& input, const Tensor& hidden, const Tensor& state, const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias) {
  auto from_input = add_bias(input, input_bias).chunk(3, 1);
  auto from_state = add_bias(hidden, hidden_bias).chunk(3, 1);
  auto reset = (from_input[0] + from_state[0]).sigmoid();
  auto update = (from_input[1] + from_state[1]).sigmoid();
  auto candidate = (from_input[2] + reset * from_state[2]).tanh();
  return {candidate + update * (state - candidate), at::empty({0}, input.options())};
}

void add_recurrent(torch::Library& library) {
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_gru_cell", &gru_cell);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) { add_recurrent(library); }

// A copy resolves these itself; torch's fallback would resolve them by copying.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// Torch would compose these of others; the CPU has kernels for them, with other bits.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findOp(name);
    if (name.getNamespace() != "aten" || !op || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional))
      library.impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("resize_", &resize_);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("set_.source_Storage_storage_offset", &set_all);
  library.impl("set_.source_Storage", &set_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("native_dropout", &native_dropout);
  add_recurrent(library);  // in inference mode
  library.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  library.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

}  // namespace toy
