#pragma once

namespace fastpath::ops {

template <class S>
struct AccumulatorOf {
  using type = S;
};
template <>
struct AccumulatorOf<float> {
  using type = double;
};

/// What long sums of S are accumulated in: double for float, S itself otherwise.
template <class S>
using Accumulator = typename AccumulatorOf<S>::type;

}  // namespace fastpath::ops
