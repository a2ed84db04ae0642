#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "harmonics.hpp"
#include "ops.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_simd/spherical_harmonics.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets what they are compiled for.
#include "harmonics-inl.hpp"
#include "hwy/highway.h"
#include "rows-inl.hpp"

#ifndef FASTPATH_CPU_SIMD_SPHERICAL_HARMONICS
#define FASTPATH_CPU_SIMD_SPHERICAL_HARMONICS
namespace cpu_simd {

/// What the loops need to know.
template <class T>
struct Harmonics {
  int l_max;
  bool normalize;
  bool scaled;                                     // else every factor is 1
  std::array<T, harmonics::kMaxDegree + 1> scale;  // per degree
  std::int64_t dim() const { return std::int64_t{l_max + 1} * (l_max + 1); }
};
template <class T>
using Forward = void(const Harmonics<T>& h, std::int64_t n, const T* vectors, T* out);
template <class T>
using Backward = void(const Harmonics<T>& h, std::int64_t n, const T* vectors, const T* cotangents, T* out);

template <class T>
using ForwardTangent = void(const Harmonics<T>& h, std::int64_t n, ReadPair<T> vectors, WritePair<T> out);
template <class T>
using BackwardTangent = void(const Harmonics<T>& h, std::int64_t n, ReadPair<T> vectors, ReadPair<T> cotangents,
                             WritePair<T> out);

}  // namespace cpu_simd
#endif

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

constexpr int kMaxDim = (harmonics::kMaxDegree + 1) * (harmonics::kMaxDegree + 1);
constexpr int kUnrolled = 4;  // highest degree that is unrolled

template <class D, class V, class T>
HWY_INLINE void scale(D d, const Harmonics<T>& h, int l_max, V* HWY_RESTRICT p) {
  for (int l = 0; l <= l_max; ++l) {
    const V factor = hn::Set(d, h.scale[l]);
    for (int c = l * l; c < (l + 1) * (l + 1); ++c) p[c] = hn::Mul(p[c], factor);
  }
}

/// One vector of edges. kLMax -1: any degree, any argument.
template <int kLMax, class D, class T>
HWY_INLINE void forward_edges(D d, const Harmonics<T>& h, const T* HWY_RESTRICT vectors, T* HWY_RESTRICT out) {
  using V = hn::Vec<D>;
  V x, y, z;
  hn::LoadInterleaved3(d, vectors, x, y, z);
  const int l_max = kLMax < 0 ? h.l_max : kLMax;
  const std::int64_t dim = std::int64_t{l_max + 1} * (l_max + 1);
  V p[kLMax < 0 ? kMaxDim : (kLMax + 1) * (kLMax + 1)];
  if constexpr (kLMax >= 0) {
    const auto u = directions(d, x, y, z);
    if (HWY_LIKELY(u.all_unit)) {
      unit_harmonics<kLMax>(d, u.x, u.y, u.z, p);
    } else {
      solid_harmonics(d, l_max, u.x, u.y, u.z, hn::MulAdd(u.x, u.x, hn::MulAdd(u.y, u.y, hn::Mul(u.z, u.z))), p);
    }
  } else {
    if (h.normalize) {
      const auto u = directions(d, x, y, z);
      x = u.x;
      y = u.y;
      z = u.z;
    }
    solid_harmonics(d, l_max, x, y, z, hn::MulAdd(x, x, hn::MulAdd(y, y, hn::Mul(z, z))), p);
  }
  if (h.scaled) scale(d, h, l_max, p);
  store_rows(d, p, dim, out, dim);
}

template <int kLMax, class D, class T>
HWY_INLINE void backward_edges(D d, const Harmonics<T>& h, const T* HWY_RESTRICT vectors,
                               const T* HWY_RESTRICT cotangents, T* HWY_RESTRICT out) {
  using V = hn::Vec<D>;
  V x, y, z;
  hn::LoadInterleaved3(d, vectors, x, y, z);
  const int l_max = kLMax < 0 ? h.l_max : kLMax;
  const std::int64_t dim = std::int64_t{l_max + 1} * (l_max + 1);
  V g[kLMax < 0 ? kMaxDim : (kLMax + 1) * (kLMax + 1)];
  load_rows(d, cotangents, dim, dim, g);
  if (h.scaled) scale(d, h, l_max, g);
  Gradient<V> result;
  if constexpr (kLMax >= 0) {
    const auto u = directions(d, x, y, z);
    result = across(d, u, unit_gradient<kLMax>(d, u.x, u.y, u.z, g));
  } else if (h.normalize) {
    const auto u = directions(d, x, y, z);
    const V r2 = hn::MulAdd(u.x, u.x, hn::MulAdd(u.y, u.y, hn::Mul(u.z, u.z)));
    result = across(d, u, solid_gradient(d, l_max, u.x, u.y, u.z, r2, g));
  } else {
    const V r2 = hn::MulAdd(x, x, hn::MulAdd(y, y, hn::Mul(z, z)));
    result = solid_gradient(d, l_max, x, y, z, r2, g);
  }
  hn::StoreInterleaved3(result.x, result.y, result.z, d, out);
}

/// The last edges, fewer than a vector, go through arrays that are filled up.
template <class T, class D>
constexpr std::int64_t lanes(D d) {
  return static_cast<std::int64_t>(hn::MaxLanes(d));
}

template <int kLMax, class T>
HWY_NOINLINE void forward_all(const Harmonics<T>& h, std::int64_t n, const T* vectors, T* out) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = lanes<T>(d);
  const std::int64_t dim = h.dim();
  std::int64_t e = 0;
  for (; e + kLanes <= n; e += kLanes) forward_edges<kLMax>(d, h, vectors + 3 * e, out + e * dim);
  if (e == n) return;
  T few[3 * kLanes] = {}, few_out[kLanes * (kLMax < 0 ? kMaxDim : (kLMax + 1) * (kLMax + 1))];
  std::copy_n(vectors + 3 * e, 3 * (n - e), few);
  forward_edges<kLMax>(d, h, few, few_out);
  std::copy_n(few_out, (n - e) * dim, out + e * dim);
}
template <int kLMax, class T>
HWY_NOINLINE void backward_all(const Harmonics<T>& h, std::int64_t n, const T* vectors, const T* cotangents, T* out) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = lanes<T>(d);
  const std::int64_t dim = h.dim();
  std::int64_t e = 0;
  for (; e + kLanes <= n; e += kLanes) {
    backward_edges<kLMax>(d, h, vectors + 3 * e, cotangents + e * dim, out + 3 * e);
  }
  if (e == n) return;
  T few[3 * kLanes] = {}, few_out[3 * kLanes];
  T few_cotangents[kLanes * (kLMax < 0 ? kMaxDim : (kLMax + 1) * (kLMax + 1))] = {};
  std::copy_n(vectors + 3 * e, 3 * (n - e), few);
  std::copy_n(cotangents + e * dim, (n - e) * dim, few_cotangents);
  backward_edges<kLMax>(d, h, few, few_cotangents, few_out);
  std::copy_n(few_out, 3 * (n - e), out + 3 * e);
}

template <class T>
void forward(const Harmonics<T>& h, std::int64_t n, const T* vectors, T* out) {
  if (h.l_max == 0) {
    std::fill_n(out, n, h.scale[0]);
    return;
  }
  switch (h.normalize && h.l_max <= kUnrolled ? h.l_max : -1) {
    case 1:
      return forward_all<1>(h, n, vectors, out);
    case 2:
      return forward_all<2>(h, n, vectors, out);
    case 3:
      return forward_all<3>(h, n, vectors, out);
    case 4:
      return forward_all<4>(h, n, vectors, out);
    default:
      return forward_all<-1>(h, n, vectors, out);
  }
}
template <class T>
void backward(const Harmonics<T>& h, std::int64_t n, const T* vectors, const T* cotangents, T* out) {
  if (h.l_max == 0) {
    std::fill_n(out, 3 * n, T(0));
    return;
  }
  switch (h.normalize && h.l_max <= kUnrolled ? h.l_max : -1) {
    case 1:
      return backward_all<1>(h, n, vectors, cotangents, out);
    case 2:
      return backward_all<2>(h, n, vectors, cotangents, out);
    case 3:
      return backward_all<3>(h, n, vectors, cotangents, out);
    case 4:
      return backward_all<4>(h, n, vectors, cotangents, out);
    default:
      return backward_all<-1>(h, n, vectors, cotangents, out);
  }
}

/// A vector of edges with tangents: rows of what is read and written, through arrays of whole vectors that are filled
/// up. Degrees are not unrolled: it would take as much code again.
template <class T>
struct TangentTile {
  static constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(hn::ScalableTag<T>()));
  using V = hn::Vec<hn::ScalableTag<T>>;
  using N = DualVector<V>;

  static void read(const T* from, std::int64_t n, T* to, std::int64_t whole) {
    if (from != nullptr) std::copy_n(from, n, to);
    std::fill(to + (from == nullptr ? 0 : n), to + whole, T(0));
  }
  /// The argument of the harmonics, also as a direction if it is one.
  static HWY_INLINE Directions<N> argument(const Harmonics<T>& h, std::int64_t n, ReadPair<T> vectors) {
    const hn::ScalableTag<T> d;
    T few[2][3 * kLanes];
    read(vectors.value, 3 * n, few[0], 3 * kLanes);
    read(vectors.tangent, 3 * n, few[1], 3 * kLanes);
    N x, y, z;
    hn::LoadInterleaved3(d, few[0], x.value, y.value, z.value);
    hn::LoadInterleaved3(d, few[1], x.tangent, y.tangent, z.tangent);
    if (!h.normalize) return {x, y, z, N(hn::Zero(d)), false};
    return directions(d, x, y, z);
  }
  static HWY_INLINE N square(const Directions<N>& u) { return mul_add(u.x, u.x, mul_add(u.y, u.y, mul(u.z, u.z))); }
};
template <class T>
void forward_tangent(const Harmonics<T>& h, std::int64_t n, ReadPair<T> vectors, WritePair<T> out) {
  using Tile = TangentTile<T>;
  const hn::ScalableTag<T> d;
  const std::int64_t dim = h.dim();
  if (h.l_max == 0) {
    if (out.value != nullptr) std::fill_n(out.value, n, h.scale[0]);
    if (out.tangent != nullptr) std::fill_n(out.tangent, n, T(0));
    return;
  }
  for (std::int64_t e = 0; e < n; e += Tile::kLanes) {
    const std::int64_t count = std::min(Tile::kLanes, n - e);
    const auto u = Tile::argument(h, count, part(vectors, 3 * e));
    typename Tile::N p[kMaxDim];
    solid_harmonics(d, h.l_max, u.x, u.y, u.z, Tile::square(u), p);
    typename Tile::V plane[kMaxDim];
    T few[Tile::kLanes * kMaxDim];
    for (int which = 0; which < 2; ++which) {
      T* const target = which == 0 ? out.value : out.tangent;
      if (target == nullptr) continue;
      for (std::int64_t c = 0; c < dim; ++c) plane[c] = which == 0 ? p[c].value : p[c].tangent;
      if (h.scaled) scale(d, h, h.l_max, plane);
      store_rows(d, plane, dim, few, dim);
      std::copy_n(few, count * dim, target + e * dim);
    }
  }
}

template <class T>
void backward_tangent(const Harmonics<T>& h, std::int64_t n, ReadPair<T> vectors, ReadPair<T> cotangents,
                      WritePair<T> out) {
  using Tile = TangentTile<T>;
  const hn::ScalableTag<T> d;
  const std::int64_t dim = h.dim();
  if (h.l_max == 0) {
    for (T* target : {out.value, out.tangent}) {
      if (target != nullptr) std::fill_n(target, 3 * n, T(0));
    }
    return;
  }
  for (std::int64_t e = 0; e < n; e += Tile::kLanes) {
    const std::int64_t count = std::min(Tile::kLanes, n - e);
    const auto u = Tile::argument(h, count, part(vectors, 3 * e));
    typename Tile::N g[kMaxDim];
    typename Tile::V plane[kMaxDim];
    T few[Tile::kLanes * kMaxDim];
    const ReadPair<T> cotangent = part(cotangents, e * dim);
    for (int which = 0; which < 2; ++which) {
      Tile::read(which == 0 ? cotangent.value : cotangent.tangent, count * dim, few, Tile::kLanes * dim);
      load_rows(d, few, dim, dim, plane);
      if (h.scaled) scale(d, h, h.l_max, plane);
      for (std::int64_t c = 0; c < dim; ++c) (which == 0 ? g[c].value : g[c].tangent) = plane[c];
    }
    auto result = solid_gradient(d, h.l_max, u.x, u.y, u.z, Tile::square(u), g);
    if (h.normalize) result = across(d, u, result);
    T rows[2][3 * Tile::kLanes];
    hn::StoreInterleaved3(result.x.value, result.y.value, result.z.value, d, rows[0]);
    hn::StoreInterleaved3(result.x.tangent, result.y.tangent, result.z.tangent, d, rows[1]);
    if (out.value != nullptr) std::copy_n(rows[0], 3 * count, out.value + 3 * e);
    if (out.tangent != nullptr) std::copy_n(rows[1], 3 * count, out.tangent + 3 * e);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cpu_simd {
namespace {

template <class T>
class SphericalHarmonics final : public CpuKernel<T> {
 public:
  explicit SphericalHarmonics(const sdk::SphericalHarmonicsConfig& config)
      : CpuKernel<T>(config.signature()), harmonics_{config.l_max, config.normalize, false, {}} {
    harmonics_.scaled = config.normalization != sdk::Normalization::component;
    for (int l = 0; l <= config.l_max; ++l) {
      harmonics_.scale[l] = config.normalization == sdk::Normalization::norm ? T(1.0 / std::sqrt(2.0 * l + 1.0))
                            : harmonics_.scaled                              ? T(0.5 * std::numbers::inv_sqrtpi)
                                                                             : T(1);
    }
  }

 private:
  void forward(const sdk::Run& run, sdk::Scratch&) override {
    const T* vectors = this->read(run.inputs, 0);
    T* out = this->write(run.outputs, 0);
    const Chunks chunks(run.inputs[0].size(0), kEdges);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      const std::int64_t e = chunks.begin(chunk);
      forward_(harmonics_, chunks.end(chunk) - e, vectors + 3 * e, out + e * harmonics_.dim());
    });
  }

  void backward(const sdk::Run& run, sdk::Scratch&) override {
    const T* vectors = this->read(run.inputs, 0);
    const T* cotangents = this->read(run.grad_outputs, 0);
    T* out = this->write(run.grad_inputs, 0);
    if (out == nullptr) return;
    const Chunks chunks(run.inputs[0].size(0), kEdges);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      const std::int64_t e = chunks.begin(chunk);
      backward_(harmonics_, chunks.end(chunk) - e, vectors + 3 * e, cotangents + e * harmonics_.dim(), out + 3 * e);
    });
  }

  void forward_tangent(const sdk::Run& run, sdk::Scratch&) override {
    const ReadPair<T> vectors = this->read(run.inputs, run.inputs_t, 0);
    const WritePair<T> out = this->write(run.outputs, run.outputs_t, 0);
    const Chunks chunks(run.inputs[0].size(0), kEdges);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      const std::int64_t e = chunks.begin(chunk);
      forward_tangent_(harmonics_, chunks.end(chunk) - e, part(vectors, 3 * e), part(out, e * harmonics_.dim()));
    });
  }
  void backward_tangent(const sdk::Run& run, sdk::Scratch&) override {
    const ReadPair<T> vectors = this->read(run.inputs, run.inputs_t, 0);
    const ReadPair<T> cotangents = this->read(run.grad_outputs, run.grad_outputs_t, 0);
    const WritePair<T> out = this->write(run.grad_inputs, run.grad_inputs_t, 0);
    if (!out) return;
    const Chunks chunks(run.inputs[0].size(0), kEdges);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      const std::int64_t e = chunks.begin(chunk);
      backward_tangent_(harmonics_, chunks.end(chunk) - e, part(vectors, 3 * e), part(cotangents, e * harmonics_.dim()),
                        part(out, 3 * e));
    });
  }
  static constexpr std::int64_t kEdges = 1024;
  Harmonics<T> harmonics_;
  Forward<T>* forward_ = FASTPATH_FOR_TARGET(Forward<T>, forward<T>);
  Backward<T>* backward_ = FASTPATH_FOR_TARGET(Backward<T>, backward<T>);
  ForwardTangent<T>* forward_tangent_ = FASTPATH_FOR_TARGET(ForwardTangent<T>, forward_tangent<T>);
  BackwardTangent<T>* backward_tangent_ = FASTPATH_FOR_TARGET(BackwardTangent<T>, backward_tangent<T>);
};

}  // namespace

Op spherical_harmonics() {
  using Config = sdk::SphericalHarmonicsConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            const int l_max = sdk::known_config<Config>(config).l_max;
            if (l_max > harmonics::kMaxDegree) {
              answer.blocked(sdk::Reason::degree,
                             "l_max " + std::to_string(l_max) + ", at most " + std::to_string(harmonics::kMaxDegree));
            }
          },
          create<SphericalHarmonics, Config>};
}

}  // namespace cpu_simd
#endif  // HWY_ONCE
