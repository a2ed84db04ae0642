#include "life.hpp"

#include <algorithm>

namespace fastpath::plugin {
namespace {

thread_local Lease* innermost = nullptr;
std::atomic<std::uint64_t> generation{0};

}  // namespace

void Life::begin_end() noexcept {
  if ((state_.fetch_or(kEnding) & kEnding) == 0) generation.fetch_add(1, std::memory_order_release);
}

void Life::await_end() const noexcept {
  for (std::uint64_t now = state_.load(); now != kEnding; now = state_.load()) state_.wait(now);
}

bool Life::enter() noexcept {
  if ((state_.fetch_add(1) & kEnding) == 0) return true;
  leave();
  return false;
}

void Life::leave() noexcept {
  if (state_.fetch_sub(1) == (kEnding | 1)) state_.notify_all();
}

Lease::Lease() noexcept : outer_(innermost) { innermost = this; }

Lease::~Lease() {
  clear();
  innermost = outer_;
}

bool Lease::covers(const Life& life) const noexcept {
  const auto end = few_.begin() + static_cast<std::ptrdiff_t>(count_);
  return std::find(few_.begin(), end, &life) != end || std::find(more_.begin(), more_.end(), &life) != more_.end();
}

bool Lease::add(Life& life) {
  for (const Lease* lease = this; lease != nullptr; lease = lease->outer_) {
    if (lease->covers(life)) return true;
  }
  if (count_ == few_.size()) more_.reserve(more_.size() + 1);
  if (!life.enter()) return good_ = false;
  if (count_ < few_.size()) {
    few_[count_++] = &life;
  } else {
    more_.push_back(&life);
  }
  return true;
}

bool Lease::held() noexcept {
  for (const Lease* lease = innermost; lease != nullptr; lease = lease->outer_) {
    if (lease->count_ > 0) return true;
  }
  return false;
}

void Lease::clear() noexcept {
  for (std::size_t i = 0; i < count_; ++i) few_[i]->leave();
  for (Life* life : more_) life->leave();
  count_ = 0;
  more_.clear();
  good_ = true;
}

std::uint64_t shutdown_generation() noexcept { return generation.load(std::memory_order_acquire); }

}  // namespace fastpath::plugin
