// GPU kernels for parts of a block, for merging attention's pieces and for the vocabulary head, each in one pass over
// memory. Compiled at first use for the GPU at hand (kernels.cc), so this file includes nothing.
//
// Values are in bf16, sums in fp32. The order of every sum depends on the shapes only, so the bits are the same every
// time and on any GPU.

typedef unsigned short bf16;
typedef long long i64;

// Threads of a block, unless a kernel says otherwise.
#define THREADS 256

__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

// Rounded to the nearest, ties to even.
__device__ __forceinline__ unsigned pair_of(float a, float b) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  return pair;
}

// Four values at a time: 8 bytes, to which all addresses are aligned.
__device__ __forceinline__ void load(const bf16* from, float* x) {
  const uint2 pairs = *reinterpret_cast<const uint2*>(from);
  x[0] = low(pairs.x), x[1] = high(pairs.x), x[2] = low(pairs.y), x[3] = high(pairs.y);
}

__device__ __forceinline__ void store(bf16* to, const float* x) {
  *reinterpret_cast<uint2*>(to) = make_uint2(pair_of(x[0], x[1]), pair_of(x[2], x[3]));
}

__device__ __forceinline__ float over_warp(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// Sum over a row's threads: a warp or a block. Every thread gets it.
template <int LANES>
__device__ __forceinline__ float over_row(float x) {
  x = over_warp(x);
  if (LANES == 32) return x;
  __shared__ float warps[LANES / 32];
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int i = 0; i < LANES / 32; ++i) x += warps[i];
  return x;
}

// RMSNorm: y = x r w with r = rsqrt(mean(x^2) + epsilon). A warp (LANES 32) or a block takes a row and holds it in
// PIECES pieces of four values per thread.
template <int LANES, int PIECES>
__device__ __forceinline__ void norm_row(const bf16* x, const bf16* w, bf16* y, float* scales, i64 n, int h, float epsilon) {
  const int lane = threadIdx.x % LANES;
  const i64 row = (i64)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
  if (row >= n) return;
  float v[PIECES][4], sum = 0;
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    const int at = 4 * (i * LANES + lane);
    if (at < h) {
      load(x + row * h + at, v[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum += v[i][j] * v[i][j];
    }
  }
  const float r = 1.0f / sqrtf(over_row<LANES>(sum) / h + epsilon);
  if (lane == 0) scales[row] = r;
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    const int at = 4 * (i * LANES + lane);
    if (at < h) {
      float s[4];
      load(w + at, s);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i][j] = v[i][j] * r * s[j];
      store(y + row * h + at, v[i]);
    }
  }
}

// dx = r (g - x r^2 mean(g x)) with g = dy w; a group of LANES threads takes every groups-th row and leaves its sum of dy x r in parts: [groups, h].
template <int LANES, int PIECES>
__device__ __forceinline__ void norm_row_back(const bf16* x, const bf16* w, const bf16* dy, const float* scales, bf16* dx, float* parts, i64 n, int h) {
  const int lane = threadIdx.x % LANES;
  const i64 groups = (i64)gridDim.x * (blockDim.x / LANES);
  const i64 group = (i64)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
  float s[PIECES][4], own[PIECES][4];
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    const int at = 4 * (i * LANES + lane);
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i][j] = own[i][j] = 0;
    if (at < h) load(w + at, s[i]);
  }
  for (i64 row = group; row < n; row += groups) {
    const float r = scales[row];
    float v[PIECES][4], g[PIECES][4], sum = 0;
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      const int at = 4 * (i * LANES + lane);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i][j] = g[i][j] = 0;
      if (at < h) {
        load(x + row * h + at, v[i]);
        load(dy + row * h + at, g[i]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        own[i][j] += g[i][j] * v[i][j] * r;
        g[i][j] *= s[i][j];
        sum += g[i][j] * v[i][j];
      }
    }
    const float c = over_row<LANES>(sum) * r * r / h;
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      const int at = 4 * (i * LANES + lane);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i][j] = r * (g[i][j] - v[i][j] * c);
      if (at < h) store(dx + row * h + at, v[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    const int at = 4 * (i * LANES + lane);
    if (at < h) *reinterpret_cast<float4*>(parts + group * h + at) = make_float4(own[i][0], own[i][1], own[i][2], own[i][3]);
  }
}

// x, y: [n, h]; w: [h]; scales: [n].
#define NORM(NAME, LANES, PIECES)                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                              \
      norm_##NAME(const bf16* x, const bf16* w, bf16* y, float* scales, i64 n, int h, float epsilon) {                               \
    norm_row<LANES, PIECES>(x, w, y, scales, n, h, epsilon);                                                                         \
  }                                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                              \
      norm_back_##NAME(const bf16* x, const bf16* w, const bf16* dy, const float* scales, bf16* dx, float* parts, i64 n, int h) {    \
    norm_row_back<LANES, PIECES>(x, w, dy, scales, dx, parts, n, h);                                                                 \
  }
NORM(128, 32, 1)
NORM(1024, 32, 8)
NORM(8192, THREADS, 8)

// The sum over parts: [groups, h], of a weight's gradient: [h]. A block takes 32 columns, each of its warps every 32nd
// row.
extern "C" __global__ void __launch_bounds__(1024) sum_parts(const float* parts, bf16* gradient, int groups, int h) {
  __shared__ float sums[32][33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
  float sum = 0;
  if (column < h) {
#pragma unroll 8
    for (int group = warp; group < groups; group += 32) sum += parts[(i64)group * h + column];
  }
  sums[lane][warp] = sum;
  __syncthreads();
  sum = over_warp(sums[warp][lane]);
  if (lane == 0 && blockIdx.x * 32 + warp < h) gradient[blockIdx.x * 32 + warp] = (bf16)(pair_of(sum, 0.0f) & 0xffffu);
}

// Rotates pairs (i, i + half) of every head by its token's angle, whose sine is multiplied by sign. x, y: [n, heads, 2 half]; cosines, sines: [n, half].
extern "C" __global__ void __launch_bounds__(THREADS)
    rotate(const bf16* x, const float* cosines, const float* sines, bf16* y, i64 n, int heads, int half, float sign) {
  const int pieces = half / 4;
  const i64 at = (i64)blockIdx.x * THREADS + threadIdx.x;
  if (at >= n * heads * pieces) return;
  const int i = 4 * (int)(at % pieces);
  const i64 head = at / pieces, row = head / heads;
  float a[4], b[4], c[4], d[4];
  load(x + head * 2 * half + i, a);
  load(x + head * 2 * half + half + i, b);
  const float4 cosine = *reinterpret_cast<const float4*>(cosines + row * half + i), sine = *reinterpret_cast<const float4*>(sines + row * half + i);
  const float cs[4] = {cosine.x, cosine.y, cosine.z, cosine.w}, ss[4] = {sine.x, sine.y, sine.z, sine.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    c[j] = a[j] * cs[j] - b[j] * (sign * ss[j]);
    d[j] = b[j] * cs[j] + a[j] * (sign * ss[j]);
  }
  store(y + head * 2 * half + i, c);
  store(y + head * 2 * half + half + i, d);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// y = silu(gate) up. All [4 n].
extern "C" __global__ void __launch_bounds__(THREADS) gated(const bf16* gate, const bf16* up, bf16* y, i64 n) {
  const i64 at = 4 * ((i64)blockIdx.x * THREADS + threadIdx.x);
  if (at >= 4 * n) return;
  float g[4], u[4];
  load(gate + at, g);
  load(up + at, u);
#pragma unroll
  for (int j = 0; j < 4; ++j) g[j] = g[j] * sigmoid(g[j]) * u[j];
  store(y + at, g);
}

// The gradients of gate and up from that of y.
extern "C" __global__ void __launch_bounds__(THREADS)
    gated_back(const bf16* gate, const bf16* up, const bf16* dy, bf16* dgate, bf16* dup, i64 n) {
  const i64 at = 4 * ((i64)blockIdx.x * THREADS + threadIdx.x);
  if (at >= 4 * n) return;
  float g[4], u[4], d[4];
  load(gate + at, g);
  load(up + at, u);
  load(dy + at, d);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float s = sigmoid(g[j]), opened = g[j] * s;
    g[j] = d[j] * u[j] * (s + opened * (1.0f - s));
    u[j] = d[j] * opened;
  }
  store(dgate + at, g);
  store(dup + at, u);
}

// y: [tokens, h] is the sum of each token's k parts, each multiplied by its share: [tokens, k] in fp32, or by 1 if
// shares is null. The j-th part of a token is in row back[token k + j] of parts. A block per token.
extern "C" __global__ void __launch_bounds__(THREADS) combine(const bf16* parts, const float* shares, const i64* back, bf16* y, int k, int h) {
  const i64 token = blockIdx.x;
  for (int at = 4 * threadIdx.x; at < h; at += 4 * THREADS) {
    float sum[4] = {0, 0, 0, 0};
    for (int part = 0; part < k; ++part) {
      float x[4];
      load(parts + back[token * k + part] * h + at, x);
      const float share = shares ? shares[token * k + part] : 1.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] += share * x[j];
    }
    store(y + token * h + at, sum);
  }
}

// The gradients of parts and shares from that of y. A block per token, a warp per part.
extern "C" __global__ void __launch_bounds__(THREADS)
    combine_back(const bf16* parts, const float* shares, const i64* back, const bf16* dy, bf16* dparts, float* dshares, int k, int h) {
  const i64 token = blockIdx.x;
  const int lane = threadIdx.x % 32;
  for (int part = threadIdx.x / 32; part < k; part += THREADS / 32) {
    const i64 row = back[token * k + part];
    const float share = shares[token * k + part];
    float dot = 0;
    for (int at = 4 * lane; at < h; at += 4 * 32) {
      float x[4], d[4];
      load(parts + row * h + at, x);
      load(dy + token * h + at, d);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        dot += x[j] * d[j];
        d[j] *= share;
      }
      store(dparts + row * h + at, d);
    }
    dot = over_warp(dot);
    if (lane == 0) dshares[token * k + part] = dot;
  }
}

// A part of attention: [rows, heads, d], with logarithms: [heads, stride]. Its first row is that of token `first`.
struct Part {
  const bf16* out;
  const float* lse;
  i64 first, stride;
};

__device__ __forceinline__ float lse_of(const Part& part, i64 token, i64 head) { return part.lse[head * part.stride + token - part.first]; }

// Merges a part into the output so far, for `count` tokens from `begin` on. out: [n, heads, d] in fp32; lse: [heads, n].
// A query without keys in the part has an infinite logarithm there and does not change.
extern "C" __global__ void __launch_bounds__(THREADS)
    merge(Part part, float* out, const float* lse, i64 begin, i64 count, i64 n, int heads, int d) {
  const int pieces = d / 4;
  const i64 at = (i64)blockIdx.x * THREADS + threadIdx.x;
  if (at >= count * heads * pieces) return;
  const i64 head = at / pieces % heads, token = begin + at / pieces / heads, i = 4 * (at % pieces);
  const float a = lse[head * n + token], b = lse_of(part, token, head);
  if (isinf(b)) return;
  const float top = fmaxf(a, b), ea = expf(a - top), eb = expf(b - top), sum = ea + eb, wa = ea / sum, wb = eb / sum;
  float x[4];
  load(part.out + ((token - part.first) * heads + head) * d + i, x);
  float4* const to = reinterpret_cast<float4*>(out + (token * heads + head) * d + i);
  float4 y = *to;
  y.x = wa * y.x + wb * x[0], y.y = wa * y.y + wb * x[1], y.z = wa * y.z + wb * x[2], y.w = wa * y.w + wb * x[3];
  *to = y;
}

// Merges one or two parts (the second may have a null `out`) into an output in bf16, which is read and written once.
extern "C" __global__ void __launch_bounds__(THREADS)
    merge_all(Part first, Part second, bf16* out, const float* lse, i64 begin, i64 count, i64 n, int heads, int d) {
  const int pieces = d / 4;
  const i64 at = (i64)blockIdx.x * THREADS + threadIdx.x;
  if (at >= count * heads * pieces) return;
  const i64 head = at / pieces % heads, token = begin + at / pieces / heads, i = 4 * (at % pieces);
  const float a = lse[head * n + token], b = lse_of(first, token, head), c = second.out ? lse_of(second, token, head) : b;
  const float top = fmaxf(a, fmaxf(b, c)), ea = expf(a - top), eb = expf(b - top), ec = second.out ? expf(c - top) : 0.0f, sum = ea + eb + ec;
  float x[4], y[4];
  load(out + (token * heads + head) * d + i, y);
  load(first.out + ((token - first.first) * heads + head) * d + i, x);
#pragma unroll
  for (int j = 0; j < 4; ++j) y[j] = (ea / sum) * y[j] + (eb / sum) * x[j];
  if (second.out) {
    load(second.out + ((token - second.first) * heads + head) * d + i, x);
#pragma unroll
    for (int j = 0; j < 4; ++j) y[j] += (ec / sum) * x[j];
  }
  store(out + (token * heads + head) * d + i, y);
}

// Merges a part's logarithms for `count` tokens from `begin` on, after its output. lse: [heads, n].
extern "C" __global__ void __launch_bounds__(THREADS) merge_lse(Part part, float* lse, i64 begin, i64 count, i64 n, int heads) {
  const i64 at = (i64)blockIdx.x * THREADS + threadIdx.x;
  if (at >= count * heads) return;
  const i64 head = at / count, token = begin + at % count;
  const float b = lse_of(part, token, head);
  if (isinf(b)) return;
  const float a = lse[head * n + token], top = fmaxf(a, b);
  lse[head * n + token] = top + logf(expf(a - top) + expf(b - top));
}

// Rows of up to five tensors, each of its own width, a multiple of four: to[row] = from[row] for the first `count` rows,
// and 0 for the others up to `rows`; or, if `add`, to[row] += from[row] + more[row], where `more` may be null.
struct Rows {
  const bf16* from[5];
  const bf16* more[5];
  bf16* to[5];
  i64 width[5], count[5], rows[5];
};

extern "C" __global__ void __launch_bounds__(THREADS) move_rows(Rows all, int add) {
  i64 at = (i64)blockIdx.x * THREADS + threadIdx.x;
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    const i64 fours = all.rows[i] * all.width[i] / 4;
    if (at < fours) {
      float x[4] = {0, 0, 0, 0}, y[4];
      if (4 * at < all.count[i] * all.width[i]) load(all.from[i] + 4 * at, x);
      if (add && all.more[i]) {
        load(all.more[i] + 4 * at, y);
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] += y[j];
      }
      if (add) {
        load(all.to[i] + 4 * at, y);
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] += y[j];
      }
      store(all.to[i] + 4 * at, x);
      return;
    }
    at -= fours;
  }
}

// A row's largest logit so far, the sum of exp(z - top), and that of exp(z - top) (z - top).
struct Softmax {
  float top, sum, weighed;
};

// The same sums relative to a larger logit.
__device__ __forceinline__ Softmax from_top(Softmax a, float top) {
  if (a.sum == 0) return {top, 0, 0};
  const float down = a.top - top, w = expf(down);
  return {top, a.sum * w, (a.weighed + a.sum * down) * w};
}

__device__ __forceinline__ Softmax both(Softmax a, Softmax b) {
  const float top = fmaxf(a.top, b.top);
  a = from_top(a, top), b = from_top(b, top);
  return {top, a.sum + b.sum, a.weighed + b.weighed};
}

#define HEAD_THREADS 512

// For each row of logits: [n, v], divided by its temperature: the logprob of its target, the entropy, and the logarithm
// of the sum of exponentials. A block per row.
extern "C" __global__ void __launch_bounds__(HEAD_THREADS)
    scores(const float* logits, const i64* targets, const float* temperatures, float* logprobs, float* entropies, float* lse, i64 v) {
  const i64 row = blockIdx.x;
  const float* x = logits + row * v;
  const float by = 1.0f / temperatures[row];
  Softmax own = {-3.4e38f, 0, 0};
  for (i64 at = 4 * threadIdx.x; at < v; at += 4 * HEAD_THREADS) {
    const float4 four = *reinterpret_cast<const float4*>(x + at);
    const float z[4] = {four.x * by, four.y * by, four.z * by, four.w * by};
    const float top = fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
    if (top > own.top) own = from_top(own, top);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float down = z[j] - own.top, w = expf(down);
      own.sum += w;
      own.weighed += w * down;
    }
  }
  for (int step = 16; step > 0; step /= 2) {
    const Softmax other = {__shfl_xor_sync(0xffffffffu, own.top, step), __shfl_xor_sync(0xffffffffu, own.sum, step),
                           __shfl_xor_sync(0xffffffffu, own.weighed, step)};
    own = both(own, other);
  }
  __shared__ Softmax warps[HEAD_THREADS / 32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int i = 1; i < HEAD_THREADS / 32; ++i) own = both(own, warps[i]);
  const float log = own.top + logf(own.sum);
  lse[row] = log;
  entropies[row] = logf(own.sum) - own.weighed / own.sum;
  logprobs[row] = x[targets[row]] * by - log;
}

// The gradient of each logit, in bf16, in the first half of its row of logits. With z the logit over the temperature, p
// = exp(z - lse), and g and e the gradients of the row's logprob and entropy H: (g (onehot - p) - e p (z - lse + H)) /
// temperature. by_entropies may be null. A block per row.
extern "C" __global__ void __launch_bounds__(HEAD_THREADS)
    scores_back(float* logits, const i64* targets, const float* temperatures, const float* lse, const float* entropies, const float* by_logprobs,
                const float* by_entropies, i64 v) {
  const i64 row = blockIdx.x, target = targets[row];
  float* x = logits + row * v;
  bf16* y = reinterpret_cast<bf16*>(x);
  const float by = 1.0f / temperatures[row], log = lse[row], g = by_logprobs[row], e = by_entropies ? by_entropies[row] : 0, entropy = entropies[row];
  // Each iteration writes before the place where later iterations read.
  for (i64 begin = 0; begin < v; begin += 4 * HEAD_THREADS) {
    const i64 at = begin + 4 * threadIdx.x;
    float d[4];
    if (at < v) {
      const float4 four = *reinterpret_cast<const float4*>(x + at);
      const float z[4] = {four.x * by, four.y * by, four.z * by, four.w * by};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float logp = z[j] - log;
        d[j] = (-g - e * (logp + entropy)) * expf(logp);
        if (at + j == target) d[j] += g;
        d[j] *= by;
      }
    }
    __syncthreads();
    if (at < v) store(y + at, d);
  }
}

// Sums of the squares of x: [n], in double precision, one part per block.
extern "C" __global__ void __launch_bounds__(THREADS) squares(const float* x, double* parts, i64 n) {
  double sum = 0;
  for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < n; at += (i64)gridDim.x * THREADS) sum += (double)x[at] * x[at];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  __shared__ double warps[THREADS / 32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int i = 1; i < THREADS / 32; ++i) sum += warps[i];
  parts[blockIdx.x] = sum;
}

// Dropout by keys (dropout.cc): in row i the draw of the j-th value is the j-th number of SplitMix64's stream from
// keys[i] ^ salt. x, y: [n, columns].
extern "C" __global__ void __launch_bounds__(THREADS)
    drop(const bf16* x, const i64* keys, bf16* y, i64 n, int columns, unsigned long long salt, unsigned below, float scale) {
  const int pieces = columns / 4;
  const i64 at = (i64)blockIdx.x * THREADS + threadIdx.x;
  if (at >= n * pieces) return;
  const unsigned long long start = (unsigned long long)keys[at / pieces] ^ salt;
  float v[4];
  load(x + 4 * at, v);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    unsigned long long z = start + 0x9E3779B97F4A7C15ull * (4 * (at % pieces) + j + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    v[j] = (unsigned)((z ^ (z >> 31)) >> 32) < below ? 0.0f : v[j] * scale;
  }
  store(y + 4 * at, v);
}
