#include "probe_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace fastpath::plugin {
namespace {

constexpr std::string_view kMagic = "fastpath-probe";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kEnd = "end";
// As many as the host accepts of a plugin.
constexpr std::size_t kMaxDevices = 1024;
constexpr std::size_t kMaxKernels = 1u << 16;
constexpr std::size_t kMaxNotes = 64;

template <class Enum, std::size_t N>
std::optional<Enum> named(std::string_view name, const std::array<Enum, N>& values) {
  for (const Enum value : values) {
    if (name == to_string(value)) return value;
  }
  return std::nullopt;
}

constexpr std::array kStates{PluginState::usable,   PluginState::idle,     PluginState::disabled,
                             PluginState::shadowed, PluginState::rejected, PluginState::quarantined};
constexpr std::array kStages{Stage::directory, Stage::file,    Stage::object, Stage::metadata,
                             Stage::trust,     Stage::cache,   Stage::probe,  Stage::load,
                             Stage::negotiate, Stage::devices, Stage::kernels};
constexpr std::array kKinds{DeviceKind::cpu, DeviceKind::cuda, DeviceKind::opencl, DeviceKind::hip,
                            DeviceKind::extension};

constexpr std::uint64_t kFloat32Bit = 1, kFloat64Bit = 2;

std::uint64_t dtype_bits(const std::vector<DType>& dtypes) {
  std::uint64_t bits = 0;
  for (const DType dtype : dtypes) {
    bits |= dtype == DType::float32 ? kFloat32Bit : dtype == DType::float64 ? kFloat64Bit : 0;
  }
  return bits;
}
std::optional<std::vector<DType>> dtypes_from(std::string_view text) {
  const auto bits = read_number<std::uint64_t>(text);
  if (!bits || *bits > (kFloat32Bit | kFloat64Bit)) return std::nullopt;
  std::vector<DType> result;
  if ((*bits & kFloat32Bit) != 0) result.push_back(DType::float32);
  if ((*bits & kFloat64Bit) != 0) result.push_back(DType::float64);
  return result;
}

template <class T>
std::optional<T> read_small(std::string_view text) {
  const auto value = read_number<std::int64_t>(text);
  if (!value || !std::in_range<T>(*value)) return std::nullopt;
  return static_cast<T>(*value);
}

std::optional<DeviceInfo> device_from(const FieldReader& fields) {
  if (fields.size() != 12) return std::nullopt;
  const auto kind = parse_device_kind(fields[1]);
  const auto index = read_small<std::int32_t>(fields[2]);
  const auto units = read_small<std::uint32_t>(fields[3]);
  const auto memory = read_number<std::uint64_t>(fields[4]);
  auto dtypes = dtypes_from(fields[5]);
  if (!kind || !index || !units || !memory || !dtypes) return std::nullopt;
  DeviceInfo device;
  device.device = {*kind, *index};
  device.units = *units;
  device.memory_bytes = *memory;
  device.dtypes = std::move(*dtypes);
  device.vendor = fields.text(6);
  device.name = fields.text(7);
  device.arch = fields.text(8);
  device.uuid = fields.text(9);
  device.pci = fields.text(10);
  device.driver = fields.text(11);
  return device;
}

std::optional<KernelInfo> kernel_from(const FieldReader& fields) {
  if (fields.size() != 6) return std::nullopt;
  const auto version = read_small<std::int32_t>(fields[2]);
  const auto kind = parse_device_kind(fields[3]);
  auto dtypes = dtypes_from(fields[4]);
  const auto passes = read_small<std::uint32_t>(fields[5]);
  if (!version || !kind || !dtypes || !passes) return std::nullopt;
  KernelInfo kernel;
  kernel.op = fields.text(1);
  kernel.op_version = *version;
  kernel.device = *kind;
  kernel.dtypes = std::move(*dtypes);
  kernel.passes = Passes::from_bits(*passes);
  return kernel;
}

}  // namespace

std::optional<DeviceKind> parse_device_kind(std::string_view name) noexcept { return named(name, kKinds); }

template <class T>
std::optional<T> read_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}
template std::optional<std::uint64_t> read_number(std::string_view text);
template std::optional<std::int64_t> read_number(std::string_view text);

std::string write_fields(const std::vector<std::string_view>& fields) {
  std::string line;
  for (const std::string_view& field : fields) {
    if (&field != fields.data()) line += '\t';
    for (const char c : field) {
      switch (c) {
        case '\\':
          line += "\\\\";
          break;
        case '\t':
          line += "\\t";
          break;
        case '\n':
          line += "\\n";
          break;
        default:
          line += c;
      }
    }
  }
  line += '\n';
  return line;
}

bool FieldReader::read(std::string_view line) {
  fields_.clear();
  unescaped_.clear();
  for (;;) {
    const std::size_t tab = line.find('\t');
    const std::string_view field = line.substr(0, tab);
    if (field.find('\\') == std::string_view::npos) {
      fields_.push_back(field);
    } else {
      std::string& text = unescaped_.emplace_back();
      for (std::size_t i = 0; i < field.size(); ++i) {
        if (field[i] != '\\') {
          text += field[i];
          continue;
        }
        const char c = ++i < field.size() ? field[i] : '\0';
        if (c != '\\' && c != 't' && c != 'n') return false;
        text += c == 't' ? '\t' : c == 'n' ? '\n' : '\\';
      }
      fields_.push_back(text);
    }
    if (tab == std::string_view::npos) return true;
    line.remove_prefix(tab + 1);
  }
}

std::string write_record(const ProbeRecord& record) {
  std::string text = write_fields({"state", to_string(record.state)});
  text += write_fields({"stage", to_string(record.stage)});
  text += write_fields({"reason", to_string(record.reason.code), record.reason.text});
  for (const DeviceInfo& device : record.devices) {
    text += write_fields({"device", to_string(device.device.kind), std::to_string(device.device.index),
                          std::to_string(device.units), std::to_string(device.memory_bytes),
                          std::to_string(dtype_bits(device.dtypes)), device.vendor, device.name, device.arch,
                          device.uuid, device.pci, device.driver});
  }
  for (const KernelInfo& kernel : record.kernels) {
    text += write_fields({"kernel", kernel.op, std::to_string(kernel.op_version), to_string(kernel.device),
                          std::to_string(dtype_bits(kernel.dtypes)), std::to_string(kernel.passes.bits())});
  }
  for (std::size_t i = 0; i < std::min(record.notes.size(), kMaxNotes); ++i) {
    text += write_fields({"note", record.notes[i]});
  }
  return text;
}

bool RecordReader::add(std::string_view line) {
  if (!fields_.read(line)) return false;
  const std::string_view key = fields_[0];
  const std::size_t size = fields_.size();
  if (key == "kernel") {
    auto kernel = kernel_from(fields_);
    if (!kernel || record_.kernels.size() >= kMaxKernels) return false;
    record_.kernels.push_back(std::move(*kernel));
    return true;
  }
  if (key == "device") {
    auto device = device_from(fields_);
    if (!device || record_.devices.size() >= kMaxDevices) return false;
    record_.devices.push_back(std::move(*device));
    return true;
  }
  if (key == "note") {
    if (size != 2 || record_.notes.size() >= kMaxNotes) return false;
    record_.notes.push_back(fields_.text(1));
    return true;
  }
  if (key == "state") {
    const auto state = size == 2 ? named(fields_[1], kStates) : std::nullopt;
    if (state) record_.state = *state;
    return !std::exchange(has_state_, true) && state;
  }
  if (key == "stage") {
    const auto stage = size == 2 ? named(fields_[1], kStages) : std::nullopt;
    if (stage) record_.stage = *stage;
    return !std::exchange(has_stage_, true) && stage;
  }
  if (key == "reason") {
    const auto code = size == 3 ? parse_reason_code(fields_[1]) : std::nullopt;
    if (code) record_.reason = {*code, fields_.text(2)};
    return !std::exchange(has_reason_, true) && code;
  }
  return false;
}

std::optional<ProbeRecord> RecordReader::finish() {
  ProbeRecord record = std::exchange(record_, {});
  const bool complete = has_state_ && has_stage_ && has_reason_;
  has_state_ = has_stage_ = has_reason_ = false;
  if (!complete) return std::nullopt;
  // What contradicts itself was not written by this library.
  if ((record.state == PluginState::usable) != (record.reason.code == ReasonCode::usable)) return std::nullopt;
  if (record.state == PluginState::usable && record.devices.empty()) return std::nullopt;
  if (record.stage < Stage::probe) return std::nullopt;
  return record;
}

std::string write_identity(const FileIdentity& identity) {
  return fmt::format("{}:{}:{}:{}", identity.device, identity.inode, identity.size, identity.modified_ns);
}

std::string write_answer_start(std::string_view core, std::string_view token) {
  return write_fields({kMagic, kVersion, core}) + write_fields({"token", token});
}

std::string write_answer_step(Stage stage) { return write_fields({"at", to_string(stage)}); }

std::string write_answer_end(const ProbeAnswer& answer) {
  std::string text;
  if (answer.record) text += write_record(*answer.record);
  for (std::size_t i = 0; i < std::min(answer.effects.size(), kMaxNotes); ++i) {
    text += write_fields({"effect", answer.effects[i]});
  }
  text += write_fields({"peak", std::to_string(answer.peak_bytes)});
  text += write_fields({kEnd, answer.token});
  return text;
}

std::optional<ProbeAnswer> read_answer(std::string_view text, std::string& why) {
  ProbeAnswer answer;
  RecordReader reader;
  FieldReader fields;
  bool has_token = false, has_peak = false;
  std::size_t number = 0;
  const auto malformed = [&](std::string_view what) {
    why = fmt::format("line {}: {}", number, what);
    return std::nullopt;
  };
  if (text.size() > kMaxAnswer) return malformed(fmt::format("more than {} bytes", kMaxAnswer));
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    if (answer.complete) return malformed("something after its end");
    // The start of a line that was being written when the process ended.
    if (end == std::string_view::npos && number > 1) break;
    if (end == std::string_view::npos) return malformed("not the start of an answer");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (!fields.read(line)) return malformed("a malformed escape");
    const std::string_view key = fields[0];
    if (number == 1) {
      if (key != kMagic || fields.size() != 3) return malformed("not the start of an answer");
      if (fields[1] != kVersion) return malformed(fmt::format("version '{}', expected {}", fields[1], kVersion));
      answer.core = fields[2];
    } else if (number == 2) {
      if (key != "token" || fields.size() != 2) return malformed("no token");
      answer.token = fields[1];
      has_token = true;
    } else if (key == "at") {
      const auto stage = fields.size() == 2 ? named(fields[1], kStages) : std::nullopt;
      if (!stage || answer.begun.size() >= kStages.size()) return malformed("an unknown step");
      answer.begun.push_back(*stage);
    } else if (key == "effect") {
      if (fields.size() != 2 || answer.effects.size() >= kMaxNotes) return malformed("a malformed effect");
      answer.effects.emplace_back(fields[1]);
    } else if (key == "peak") {
      const auto bytes = fields.size() == 2 ? read_number<std::uint64_t>(fields[1]) : std::nullopt;
      if (!bytes || has_peak) return malformed("a malformed number of bytes");
      answer.peak_bytes = *bytes;
      has_peak = true;
    } else if (key == kEnd) {
      if (fields.size() != 2 || fields[1] != answer.token) return malformed("an end that is not the helper's");
      answer.record = reader.finish();
      if (!answer.record || !has_peak) return malformed("its end, before it said everything");
      answer.complete = true;
    } else if (!reader.add(line)) {
      return malformed("malformed, or not known");
    }
  }
  if (!has_token) {
    why = "ends before its second line";
    return std::nullopt;
  }
  return answer;
}

}  // namespace fastpath::plugin
