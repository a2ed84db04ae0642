#include "torchscript/writer.h"

#include <torch/script.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <vector>

namespace {

using torch::jit::Module;

c10::ScalarType scalar_type(int32_t dtype) {
  switch (dtype) {
    case FASTPATH_SCRIPT_FLOAT32:
      return torch::kFloat32;
    case FASTPATH_SCRIPT_FLOAT64:
      return torch::kFloat64;
    case FASTPATH_SCRIPT_INT32:
      return torch::kInt32;
    case FASTPATH_SCRIPT_INT64:
      return torch::kInt64;
    default:
      throw std::invalid_argument("a dtype of number " + std::to_string(dtype));
  }
}

/// The module tree under construction: a module is complete once its children are.
struct Node {
  std::vector<const fastpath_script_tensor*> tensors;
  std::vector<std::string> order;  ///< Of the children.
  std::map<std::string, Node> children;

  Node& child(const std::string& name) {
    if (children.find(name) == children.end()) order.push_back(name);
    return children[name];
  }
};

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

Node tree_of(const fastpath_script_module& from) {
  Node root;
  for (int64_t i = 0; i < from.n_tensors; ++i) {
    const std::string name = from.tensors[i].name;
    Node* at = &root;
    for (size_t start = 0, dot = 0; (dot = name.find('.', start)) != std::string::npos; start = dot + 1) {
      at = &at->child(name.substr(start, dot - start));
    }
    at->tensors.push_back(&from.tensors[i]);
  }
  return root;
}

Module build(const Node& node, const std::string& class_name,
             const std::shared_ptr<torch::jit::CompilationUnit>& unit) {
  Module module(c10::QualifiedName("__torch__.fastpath." + class_name), unit);
  module.register_attribute("training", c10::BoolType::get(), false);
  for (const fastpath_script_tensor* tensor : node.tensors) {
    const std::vector<int64_t> shape(tensor->shape, tensor->shape + tensor->rank);
    // A copy: the caller's memory is not the module's.
    torch::Tensor values = torch::from_blob(const_cast<void*>(tensor->data), shape, scalar_type(tensor->dtype)).clone();
    if (tensor->is_parameter != 0) {
      module.register_parameter(last_part(tensor->name), values.requires_grad_(), false);
    } else {
      module.register_buffer(last_part(tensor->name), values);
    }
  }
  for (const std::string& name : node.order) {
    module.register_module(name, build(node.children.at(name), class_name + "_" + name, unit));
  }
  return module;
}

/// Never says that the sink refused: libtorch's writer of archives would throw in its destructor and end the process.
class SinkBuffer : public std::streambuf {
 public:
  SinkBuffer(fastpath_script_sink sink, void* user) : sink_(sink), user_(user) {}
  bool refused() const { return refused_; }

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    refused_ = refused_ || sink_(user_, text, static_cast<uint64_t>(size)) != 0;
    return size;
  }
  int overflow(int c) override {
    const char byte = static_cast<char>(c);
    if (c != traits_type::eof()) xsputn(&byte, 1);
    return traits_type::not_eof(c);
  }

 private:
  fastpath_script_sink sink_;
  void* user_;
  bool refused_ = false;
};

void write(const fastpath_script_module& from, fastpath_script_sink sink, void* user) {
  Module module = build(tree_of(from), "Mace", std::make_shared<torch::jit::CompilationUnit>());
  // In a dictionary, so that they are in no state dict.
  c10::Dict<std::string, torch::Tensor> constants;
  for (int64_t i = 0; i < from.n_constants; ++i) {
    const fastpath_script_constant& constant = from.constants[i];
    constants.insert(constant.name,
                     torch::from_blob(const_cast<double*>(constant.values), {constant.size}, torch::kFloat64).clone());
  }
  module.register_attribute("constants", c10::DictType::create(c10::StringType::get(), c10::TensorType::get()),
                            c10::IValue(constants));
  const std::vector<std::string> heads(from.heads, from.heads + from.n_heads);
  module.register_attribute("heads", c10::ListType::ofStrings(), c10::IValue(heads));
  module.define(from.source);
  torch::jit::ExtraFilesMap files;
  for (int64_t i = 0; i < from.n_files; ++i) files[from.files[i].name] = from.files[i].text;
  SinkBuffer buffer(sink, user);
  std::ostream stream(&buffer);
  module.save(stream, files);
  if (buffer.refused() || !stream) throw std::runtime_error("the archive could not be written");
}

void say(const char* text, char* error, uint64_t size) {
  if (error == nullptr || size == 0) return;
  const size_t length = std::min<size_t>(std::strlen(text), size - 1);
  std::memcpy(error, text, length);
  error[length] = '\0';
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int32_t fastpath_torchscript_write_1(
    const fastpath_script_module* module, fastpath_script_sink sink, void* user, char* error, uint64_t error_size) {
  try {
    write(*module, sink, user);
    return 0;
  } catch (const c10::Error& failure) {
    say(failure.what_without_backtrace(), error, error_size);
  } catch (const std::exception& failure) {
    say(failure.what(), error, error_size);
  } catch (...) {
    say("an exception of unknown type", error, error_size);
  }
  return 1;
}
