#include "fake_device.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

namespace fake_device {
namespace {

// No processor lets a program use such an address, so a host that follows a handle is stopped at once.
constexpr std::uintptr_t kFirstAddress = std::uintptr_t{1} << 62;
constexpr std::uintptr_t kAlignment = 256;
constexpr std::uintptr_t kGap = 4096;  // an offset past one allocation does not end up in the next

[[noreturn]] void refuse(const std::string& text) { throw sdk::InvalidArgument("fake device: " + text); }

bool conflict(const std::vector<Use>& a, const std::vector<Use>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Use& x) {
    return std::any_of(b.begin(), b.end(), [&](const Use& y) { return x.block == y.block && (x.writes || y.writes); });
  });
}

}  // namespace

fake_device_counters& counters() {
  static fake_device_counters instance = {
      {FP_SIZE_EXTENSION, 0, FAKE_DEVICE_COUNTERS_ID, sizeof(FAKE_DEVICE_COUNTERS_ID) - 1, nullptr},
      0,
      0,
      0,
      0,
      0,
      0,
      0,
      0,
      0,
      0,
      0,
      0,
      0,
      0,
      0};
  return instance;
}

FakeDevice::FakeDevice() : next_address_(kFirstAddress) { count(counters().open_devices); }
FakeDevice::~FakeDevice() { count(counters().open_devices, -1); }

void* FakeDevice::allocate(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  need();
  if (bytes > kMemory - used_) throw std::bad_alloc();
  auto block = std::make_shared<Block>();
  block->address = next_address_;
  // What nobody wrote yet looks like no number at all.
  block->bytes.assign(bytes, std::byte{0xff});
  next_address_ += (bytes + kGap + kAlignment - 1) / kAlignment * kAlignment;
  used_ += bytes;
  count(counters().live_blocks);
  count(counters().live_bytes, static_cast<std::int64_t>(bytes));
  blocks_.emplace(block->address, block);
  return reinterpret_cast<void*>(block->address);
}

void FakeDevice::release(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == blocks_.end()) {
    count(counters().violations);
    return;
  }
  for (const auto& [key, stream] : streams_) {
    for (const Work& work : stream->pending) {
      if (conflict(work.uses, {{found->second, true}})) count(counters().violations);
    }
  }
  used_ -= found->second->bytes.size();
  count(counters().live_blocks, -1);
  count(counters().live_bytes, -static_cast<std::int64_t>(found->second->bytes.size()));
  blocks_.erase(found);
}

Range FakeDevice::resolve(const void* handle, std::uint64_t offset, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return resolve_locked(handle, offset, bytes);
}

Range FakeDevice::resolve_locked(const void* handle, std::uint64_t offset, std::uint64_t bytes) {
  const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(handle));
  if (found == blocks_.end()) refuse("not an address of this device");
  const std::uint64_t size = found->second->bytes.size();
  if (offset > size || bytes > size - offset) {
    refuse(std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " of an allocation of " +
           std::to_string(size));
  }
  return {found->second, found->second->bytes.data() + offset};
}

FakeDevice::Stream& FakeDevice::stream_of(const void* stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) refuse("not a stream of this device");
  return *found->second;
}

void FakeDevice::submit(fp_stream* stream, std::vector<Use> uses, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  submit_locked(stream, std::move(uses), std::move(work));
}

void FakeDevice::need() {
  if (lost_) throw sdk::Failure(FP_E_DEVICE_LOST, "fake device: it was lost");
}

void FakeDevice::run(fp_stream* stream, std::vector<Use> uses, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (lose_at_run_) lost_ = true;
  submit_locked(stream, std::move(uses), std::move(work));
}

fp_native FakeDevice::native(fp_stream* stream) {
  const std::lock_guard lock(mutex_);
  need();
  if (native_ == FP_NATIVE_NONE) return DeviceMemory::native(stream);
  fp_native result = sdk::abi_struct<fp_native>();
  result.kind = native_;
  result.context = this;
  result.stream = stream == nullptr ? nullptr : (stream_of(stream), stream);
  return result;
}

void FakeDevice::submit_locked(fp_stream* stream, std::vector<Use> uses, std::function<void()> work) {
  need();
  Stream* own = stream == nullptr ? nullptr : &stream_of(stream);
  for (const auto& [key, other] : streams_) {
    if (other.get() == own) continue;
    for (const Work& pending : other->pending) {
      if (!conflict(uses, pending.uses)) continue;
      const auto ordered = own == nullptr ? Clock::const_iterator() : own->after.find(key);
      const bool after = own != nullptr && ordered != own->after.end() && ordered->second >= pending.ticket;
      if (!after && strict_) refuse("memory is used while another stream works on it, with no order between the two");
    }
  }
  if (own == nullptr) return work();
  own->pending.push_back({++own->last_ticket, std::move(uses), std::move(work)});
}

void FakeDevice::execute(const void* key, std::uint64_t ticket) {
  const auto found = streams_.find(key);
  if (found == streams_.end()) return;  // a stream that is gone has nothing left to do
  Stream& stream = *found->second;
  while (!stream.pending.empty() && stream.pending.front().ticket <= ticket) {
    const Work work = std::move(stream.pending.front());
    stream.pending.pop_front();
    if (!work.run) {
      execute(work.other, work.until);
    } else if (!stream.failure) {
      try {
        work.run();
      } catch (...) {
        stream.failure = std::current_exception();  // told to who waits for the stream
      }
    }
  }
}

void FakeDevice::copy_to_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t bytes,
                                fp_stream* stream) {
  const std::lock_guard lock(mutex_);
  const Range target = resolve_locked(to, to_offset, bytes);
  count(counters().copies_to_device);
  submit_locked(stream, {{target.block, true}}, [=] { std::memcpy(target.data, from, bytes); });
}

void FakeDevice::copy_from_device(void* to, const void* from, std::uint64_t from_offset, std::uint64_t bytes,
                                  fp_stream* stream) {
  const std::lock_guard lock(mutex_);
  const Range source = resolve_locked(from, from_offset, bytes);
  count(counters().copies_from_device);
  submit_locked(stream, {{source.block, false}}, [=] { std::memcpy(to, source.data, bytes); });
}

void FakeDevice::copy_on_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t from_offset,
                                std::uint64_t bytes, fp_stream* stream) {
  const std::lock_guard lock(mutex_);
  const Range target = resolve_locked(to, to_offset, bytes);
  const Range source = resolve_locked(from, from_offset, bytes);
  count(counters().copies_on_device);
  submit_locked(stream, {{target.block, true}, {source.block, false}},
                [=] { std::memmove(target.data, source.data, bytes); });
}

void FakeDevice::fill_zero(void* memory, std::uint64_t offset, std::uint64_t bytes, fp_stream* stream) {
  const std::lock_guard lock(mutex_);
  const Range target = resolve_locked(memory, offset, bytes);
  count(counters().fills);
  submit_locked(stream, {{target.block, true}}, [=] { std::memset(target.data, 0, bytes); });
}

fp_stream* FakeDevice::create_stream() {
  const std::lock_guard lock(mutex_);
  need();
  auto stream = std::make_unique<Stream>();
  const void* key = stream.get();
  streams_.emplace(key, std::move(stream));
  count(counters().live_streams);
  return static_cast<fp_stream*>(const_cast<void*>(key));
}

void FakeDevice::destroy_stream(fp_stream* stream) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end() || !found->second->pending.empty()) count(counters().violations);
  if (found == streams_.end()) return;
  streams_.erase(found);
  count(counters().live_streams, -1);
}

void FakeDevice::synchronize(fp_stream* stream) {
  const std::lock_guard lock(mutex_);
  need();
  count(counters().synchronizations);
  if (stream == nullptr) {
    for (const auto& [key, other] : streams_) execute(key, other->last_ticket);
    return;
  }
  Stream& own = stream_of(stream);
  execute(stream, own.last_ticket);
  if (own.failure) std::rethrow_exception(std::exchange(own.failure, nullptr));
}

fp_event* FakeDevice::create_event() {
  const std::lock_guard lock(mutex_);
  need();
  auto event = std::make_unique<Event>();
  const void* key = event.get();
  events_.emplace(key, std::move(event));
  count(counters().live_events);
  return static_cast<fp_event*>(const_cast<void*>(key));
}

void FakeDevice::destroy_event(fp_event* event) noexcept {
  const std::lock_guard lock(mutex_);
  if (events_.erase(event) == 0) {
    count(counters().violations);
    return;
  }
  count(counters().live_events, -1);
}

void FakeDevice::record(fp_event* event, fp_stream* stream) {
  const std::lock_guard lock(mutex_);
  need();
  const auto found = events_.find(event);
  if (found == events_.end()) refuse("not an event of this device");
  Event& target = *found->second;
  target = {};
  if (stream == nullptr) return;
  const Stream& source = stream_of(stream);
  target.stream = stream;
  target.ticket = source.last_ticket;
  target.clock = source.after;
  target.clock[stream] = source.last_ticket;
}

void FakeDevice::wait(fp_stream* stream, fp_event* event) {
  const std::lock_guard lock(mutex_);
  need();
  const auto found = events_.find(event);
  if (found == events_.end()) refuse("not an event of this device");
  const Event& source = *found->second;
  if (source.stream == nullptr) return;
  if (stream == nullptr) return execute(source.stream, source.ticket);
  Stream& own = stream_of(stream);
  for (const auto& [key, ticket] : source.clock) own.after[key] = std::max(own.after[key], ticket);
  own.pending.push_back({++own.last_ticket, {}, {}, source.stream, source.ticket});
}

void FakeDevice::memory_info(std::uint64_t* free_bytes, std::uint64_t* total_bytes) {
  const std::lock_guard lock(mutex_);
  need();
  *free_bytes = kMemory - used_;
  *total_bytes = kMemory;
}

}  // namespace fake_device
