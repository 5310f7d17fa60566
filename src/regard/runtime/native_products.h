// y = x Wᵀ + b for any number of rows, with float32 or int8 weights: see linear.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "native_tiles.h"

extern "C" {
struct Product {  // y = x Wᵀ + b; W is float32, or int8 with a `scale` and a `sum` for each row
    const void* weight;  // [outputs / LANES, inputs, LANES], or [outputs / LANES, inputs / 4, LANES, 4]; zero-padded
    const float *scale, *bias;
    const int32_t* sum;
    int64_t outputs, inputs;
};
}

using Floats = std::vector<float>;
constexpr int LANES = 32;  // outputs whose weights are interleaved
// Numbers in a vector; registers that hold sums, besides those of the factors; most rows that are computed at once.
#if defined(__AVX512BW__) && !defined(REGARD_NARROW)
#define WIDE_VECTORS  // of 512 bits
constexpr int WIDE = 16, REGISTERS = 24, ROWS = 8;
#elif defined(__aarch64__)
constexpr int WIDE = 4, REGISTERS = 24, ROWS = 5;
#elif defined(__AVX2__)
constexpr int WIDE = 8, REGISTERS = 12, ROWS = 6;
#else
constexpr int WIDE = 4, REGISTERS = 12, ROWS = 3;
#endif
constexpr int VECTORS = LANES / WIDE;
constexpr int together(int rows, int registers) {  // vectors per row whose sums fit into the registers
    int vectors = VECTORS;
    while (vectors > 1 && rows * vectors > registers) vectors /= 2;
    return vectors;
}
typedef float FloatVector __attribute__((vector_size(4 * WIDE)));
typedef int32_t IntVector __attribute__((vector_size(4 * WIDE)));
template <class Vector, int R>
using Sums = Vector[R][VECTORS];  // for R rows

template <class Vector>
static Vector load(const void* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

// Prefetches weights while others are multiplied. Prefetching an invalid address does no harm.
struct Ahead {
    const char* at;
    int64_t lines;  // cache lines per call; below 0: none; 0: as many as are used meanwhile, into the first-level cache
    void fetch() {
        if (lines == 0) {
            __builtin_prefetch(at, 0, 3), __builtin_prefetch(at + 64, 0, 3);
            at += 128;
        } else {
            for (int64_t n = 0; n < lines; n++, at += 64) __builtin_prefetch(at, 0, 2);
        }
    }
};

static inline FloatVector add(FloatVector sums, const float* x, const float* weight) {
    return sums + *x * load<FloatVector>(weight);
}

// x0 w0 + x1 w1 + x2 w2 + x3 w3 for every output, in exact integer arithmetic on every CPU. `Byte` is the type that x
// is rounded to. The byte instruction that every x86 has (maddubs) saturates sums at 16 bits, so it is not used.
template <class Number>
static inline IntVector repeated(const Number* x) {  // the same 32 bits of x in every lane
    int32_t bits;
    std::memcpy(&bits, x, sizeof bits);
    return IntVector{} + bits;
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define BYTES_BY "VNNI"
using Byte = uint8_t;
constexpr int EXCESS = 128;  // the instruction takes unsigned x, so this is added to every number of x
constexpr int BYTE_REGISTERS = REGISTERS, BYTE_ROWS = ROWS;
static inline IntVector add(IntVector sums, const Byte* x, const int8_t* weight) {
    IntVector same = repeated(x), weights = load<IntVector>(weight);
#if defined(WIDE_VECTORS)
    return (IntVector)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)same, (__m512i)weights);
#elif defined(__AVXVNNI__)
    return (IntVector)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)same, (__m256i)weights);
#else
    return (IntVector)_mm256_dpbusd_epi32((__m256i)sums, (__m256i)same, (__m256i)weights);
#endif
}
#elif defined(__x86_64__)
#define BYTES_BY "16-bit products"
using Byte = int16_t;  // every four numbers of x are stored in the order first, third, second, fourth
#define BYTES_CROSSED
constexpr int EXCESS = 0;
constexpr int BYTE_REGISTERS = WIDE == 16 ? 24 : 8;  // the 16-bit weights need some of the registers
constexpr int BYTE_ROWS = WIDE == 16 ? 12 : ROWS;     // more rows share the conversion of bytes to 16 bits
typedef int16_t ShortVector __attribute__((vector_size(4 * WIDE)));
static inline IntVector multiply_pairs(ShortVector a, IntVector b) {  // a0 b0 + a1 b1 of neighbouring numbers
#if defined(WIDE_VECTORS)
    return (IntVector)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (IntVector)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    return (IntVector)_mm_madd_epi16((__m128i)a, (__m128i)b);
#endif
}
static inline IntVector add(IntVector sums, const Byte* x, const int8_t* weight) {
    ShortVector odd = load<ShortVector>(weight), even = (odd << 8) >> 8;  // w0 and w2 are the lower bytes
    return sums + multiply_pairs(even, repeated(x)) + multiply_pairs(odd >> 8, repeated(x + 2));
}
#else
using Byte = int8_t;
constexpr int EXCESS = 0;
constexpr int BYTE_REGISTERS = REGISTERS, BYTE_ROWS = ROWS;
#if defined(__ARM_FEATURE_DOTPROD)
#define BYTES_BY "dot products"
#elif defined(__aarch64__)
#define BYTES_BY "16-bit sums of two products"
static inline IntVector add(IntVector sums, const Byte* x, const int8_t* weight) {
    int8x16_t weights = vld1q_s8(weight);
    int8x8_t same = vreinterpret_s8_s32(vld1_dup_s32(reinterpret_cast<const int32_t*>(x)));
    int16x8_t low = vmull_s8(vget_low_s8(weights), same), high = vmull_s8(vget_high_s8(weights), same);
    return (IntVector)vpadalq_s16((int32x4_t)sums, vpaddq_s16(low, high));  // 2 x 127 x 127 fits into 16 bits
}
#else
#define BYTES_BY "plain loops"
static inline IntVector add(IntVector sums, const Byte* x, const int8_t* weight) {
    for (int n = 0; n < WIDE; n++)
        for (int i = 0; i < 4; i++) sums[n] += static_cast<int32_t>(x[i]) * static_cast<int32_t>(weight[4 * n + i]);
    return sums;
}
#endif
#endif

// Sums of R rows of x, with stride `apart`, for LANES outputs, whose weights are contiguous for every input, or for
// every four bytes.
template <int R, class Vector, class Number, class Weight>
static void block(
    const Weight* weight, const Number* x, int64_t inputs, int64_t apart, Sums<Vector, R>& sums, Ahead ahead
) {
    constexpr int STEP = 4 / sizeof(Weight), TOGETHER = together(R, STEP > 1 ? BYTE_REGISTERS : REGISTERS);
    for (int from = 0; from < VECTORS; from += TOGETHER) {
        Vector totals[R][TOGETHER] = {};
        for (int64_t k = 0; k < inputs; k += STEP) {
            if (from == 0) ahead.fetch();
            const Weight* these = weight + k * LANES + from * WIDE * STEP;
            for (int r = 0; r < R; r++)
                for (int n = 0; n < TOGETHER; n++)
                    totals[r][n] = add(totals[r][n], x + r * apart + k, these + n * WIDE * STEP);
        }
        for (int r = 0; r < R; r++) std::copy_n(totals[r], TOGETHER, sums[r] + from);
    }
}

#if defined(__aarch64__)
// Broadcasting a number of x would occupy the unit that multiplies. So x is loaded four floats, or four times four
// bytes, at a time, and multiplied by lane. The weights may take half of a cache of 64 KB.
constexpr int64_t SLICE = 256;  // inputs

template <int PART>
static FloatVector add(FloatVector sums, FloatVector x, const float* weight) {
    return (FloatVector)vfmaq_laneq_f32((float32x4_t)sums, vld1q_f32(weight), (float32x4_t)x, PART);
}

#if defined(__ARM_FEATURE_DOTPROD)
template <int PART>
static IntVector add(IntVector sums, IntVector x, const int8_t* weight) {
    return (IntVector)vdotq_laneq_s32((int32x4_t)sums, vld1q_s8(weight), (int8x16_t)x, PART);
}
#endif

template <int PART, int R, int TOGETHER, class Vector, class Weight>
static inline void add_part(
    Vector (&totals)[R][TOGETHER], const Vector (&x)[R], const Weight* weight, Ahead& ahead, bool asks
) {
    if (asks) ahead.fetch();
    for (int n = 0; n < TOGETHER; n++)  // one vector of weights at a time, because the registers are full
        for (int r = 0; r < R; r++) totals[r][n] = add<PART>(totals[r][n], x[r], weight + n * 16 / sizeof(Weight));
}

template <int R, class Vector, class Number, class Weight>
static void block_by_parts(
    const Weight* weight, const Number* x, int64_t inputs, int64_t apart, Sums<Vector, R>& sums, Ahead ahead
) {
    constexpr int STEP = 4 / sizeof(Weight), TOGETHER = together(R, REGISTERS);
    constexpr int64_t NEXT = LANES * STEP;  // weights per step
    int64_t whole = inputs - inputs % (4 * STEP);  // the number of float inputs is a multiple of four
    for (int from = 0; from < VECTORS; from += TOGETHER) {
        Vector totals[R][TOGETHER] = {}, parts[R];
        const Weight* these = weight + from * WIDE * STEP;
        for (int64_t k = 0; k < whole; k += 4 * STEP, these += 4 * NEXT) {
            for (int r = 0; r < R; r++) parts[r] = load<Vector>(x + r * apart + k);
            add_part<0>(totals, parts, these, ahead, from == 0);
            add_part<1>(totals, parts, these + NEXT, ahead, from == 0);
            add_part<2>(totals, parts, these + 2 * NEXT, ahead, from == 0);
            add_part<3>(totals, parts, these + 3 * NEXT, ahead, from == 0);
        }
        if (STEP > 1 && whole < inputs) {  // bytes beyond the end are read, but not multiplied
            for (int r = 0; r < R; r++) parts[r] = load<Vector>(x + r * apart + whole);
            add_part<0>(totals, parts, these, ahead, false);
            if (whole + STEP < inputs) add_part<1>(totals, parts, these + NEXT, ahead, false);
            if (whole + 2 * STEP < inputs) add_part<2>(totals, parts, these + 2 * NEXT, ahead, false);
        }
        for (int r = 0; r < R; r++)
            for (int n = 0; n < TOGETHER; n++) sums[r][from + n] = totals[r][n];
    }
}

template <int R>
static void block(
    const float* weight, const float* x, int64_t inputs, int64_t apart, Sums<FloatVector, R>& sums, Ahead ahead
) {
    block_by_parts<R, FloatVector>(weight, x, inputs, apart, sums, ahead);
}

#if defined(__ARM_FEATURE_DOTPROD)
template <int R>
static void block(
    const int8_t* weight, const Byte* x, int64_t inputs, int64_t apart, Sums<IntVector, R>& sums, Ahead ahead
) {
    block_by_parts<R, IntVector>(weight, x, inputs, apart, sums, ahead);
}
#endif
#else
constexpr int64_t SLICE = INT64_MAX;
#endif

// Buffers that all products of a call share: x as bytes with a scale for each row, or cut into pieces for tiles.
struct Scratch {
    std::vector<Byte> x;
    Floats scale;
    std::vector<tiles::Line> pieces;
    void reserve(int64_t rows, int64_t inputs) {
        scale.resize(rows), x.resize(rows * inputs + 16);  // the last row may be read beyond its end
        if (tiles::READY) pieces.resize(tiles::lines(rows, inputs));
    }
};

// The smallest number that torch divides by: see SMALLEST in linear.py.
constexpr float SMALLEST = 1e-30f;

// Force `value` to be computed at this point, so that the compiler does not fuse it with a later addition, which would
// round differently. So compiled code rounds as torch does, and a row does not depend on the number of rows.
template <class Value>
static inline void settle(Value& value) {
    asm volatile("" : : "r"(&value) : "memory");
}

// All threads of a team call the functions below: each does its share, and they synchronise at the end.
static void round(const float* x, Scratch& bytes, int64_t rows, int64_t inputs) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float* from = x + r * inputs;
        Byte* to = bytes.x.data() + r * inputs;
        float largest = SMALLEST;
        for (int64_t k = 0; k < inputs; k++) largest = std::max(largest, std::fabs(from[k]));
        float most = 127.0f;
        settle(most);  // otherwise compilers multiply by its rounded reciprocal
        bytes.scale[r] = largest / most;
        float steps = most / largest;
        settle(steps);
        for (int64_t k = 0; k < inputs; k++)
            to[k] = static_cast<Byte>(static_cast<int32_t>(std::nearbyint(from[k] * steps)) + EXCESS);
#if defined(BYTES_CROSSED)
        for (int64_t k = 1; k < inputs; k += 4) std::swap(to[k], to[k + 1]);
#endif
    }
}

// y = sums + bias, or y += sums + bias, for a row's outputs from `first` on; the last block may have fewer.
static inline void put(
    const FloatVector (&sums)[VECTORS], const Product& p, float* y, int64_t row, int64_t first, bool add,
    bool bias = true
) {
    const float* biases = p.bias && bias ? p.bias + first : nullptr;
    float *to = y + row * p.outputs + first, last[LANES];
    int64_t count = std::min<int64_t>(p.outputs - first, LANES);
    bool whole = count == LANES;
    if (!whole && add) std::copy_n(to, count, last);
    float* here = whole ? to : last;
    for (int vector = 0; vector < VECTORS; vector++) {
        FloatVector sum = sums[vector];
        if (biases) sum += load<FloatVector>(biases + vector * WIDE);
        if (add) sum += load<FloatVector>(here + vector * WIDE);
        std::memcpy(here + vector * WIDE, &sum, sizeof sum);
    }
    if (!whole) std::copy_n(last, count, to);
}

#ifdef TILES
// Sums for one panel of weights and up to tiles::MOST rows of x, given in pieces, over at most one slab of inputs.
static void sum_by_tiles(
    const float* weight, int64_t depth, const uint16_t* x, int64_t groups, int64_t apart, FloatVector (*sums)[VECTORS],
    Ahead ahead
) {
    using namespace tiles;
    alignas(64) uint16_t panel[2 * CHUNK / DEPTH * STEP];
    for (int64_t k = 0; k < depth; k += CHUNK) {
        int64_t inputs = std::min(depth - k, CHUNK);
        cut_panel(weight + k * LANES, inputs, panel);
        for (int64_t g = 0; g < groups; g += 2) {
            auto sum_of = g + 1 < groups ? sum<2, Ahead> : sum<1, Ahead>;
            float* to = reinterpret_cast<float*>(sums + g * SIDE);
            sum_of(x + g * apart + steps(k) * STEP, apart, panel, steps(inputs), to, k > 0, ahead);
        }
    }
}

// `multiply` with many rows of float32: see native_tiles.h.
static void multiply_by_tiles(const Product& p, const float* x, Scratch& scratch, float* y, int64_t rows, bool add) {
    using namespace tiles;
    uint16_t* pieces = scratch.pieces.data()->numbers;
    int64_t apart = steps(p.inputs) * STEP;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r += SIDE) cut_rows(x + r * p.inputs, rows - r, p.inputs, pieces + r / SIDE * apart);
    FloatVector sums[MOST][VECTORS];
    Use use;
    for (int64_t at = 0; at < rows; at += MOST)
        for (int64_t k = 0; k < p.inputs; k += SLAB) {
            int64_t count = std::min(rows - at, MOST), groups = (count + SIDE - 1) / SIDE;
            int64_t depth = std::min(p.inputs - k, SLAB);
#pragma omp for schedule(static) nowait
            for (int64_t first = 0; first < p.outputs; first += LANES) {  // a thread has the same outputs in every slab
                const float* weight = static_cast<const float*>(p.weight) + first * p.inputs + k * LANES;
                const char* next = reinterpret_cast<const char*>(weight + LANES * p.inputs);
                Ahead ahead = {next, depth * LANES / 16 / ((groups + 1) / 2 * steps(depth) * 6) + 1};
                sum_by_tiles(weight, depth, pieces + at / SIDE * apart + steps(k) * STEP, groups, apart, sums, ahead);
                for (int64_t r = 0; r < count; r++) put(sums[r], p, y, at + r, first, add || k > 0, k == 0);
            }
        }
#pragma omp barrier
}
#endif

// A part of the weights for LANES outputs: those of `inputs` inputs from `k` on.
struct Panel {
    const Product& p;
    int64_t first, k, inputs;  // the first output and input
    const char* weight() const {
        return static_cast<const char*>(p.weight) + (first * p.inputs + k * LANES) * (p.scale ? 1 : 4);
    }
    int64_t bytes() const { return inputs * LANES * (p.scale ? 1 : 4); }
};

// Multiply R rows, from row `at` on, by a panel.
template <int R>
static void part(const Panel& panel, const float* x, const Scratch& bytes, float* y, int64_t at, bool add, Ahead ahead) {
    const Product& p = panel.p;
    int64_t from = at * p.inputs + panel.k;
    Sums<FloatVector, R> sums;
    if (p.scale) {
        Sums<IntVector, R> totals;
        const int8_t* weight = reinterpret_cast<const int8_t*>(panel.weight());
        block<R>(weight, bytes.x.data() + from, panel.inputs, p.inputs, totals, ahead);
        for (int vector = 0; vector < VECTORS; vector++) {
            FloatVector scale = load<FloatVector>(p.scale + panel.first + vector * WIDE);
            IntVector excess = EXCESS * load<IntVector>(p.sum + panel.first + vector * WIDE);
            for (int r = 0; r < R; r++) {
                sums[r][vector] = __builtin_convertvector(totals[r][vector] - excess, FloatVector) * scale;
            }
        }
        settle(sums);
        for (int r = 0; r < R; r++)
            for (FloatVector& sum : sums[r]) sum *= bytes.scale[at + r];
        settle(sums);
    } else {
        const float* weight = reinterpret_cast<const float*>(panel.weight());
        block<R>(weight, x + from, panel.inputs, p.inputs, sums, ahead);
    }
    for (int r = 0; r < R; r++) put(sums[r], p, y, at + r, panel.first, add || panel.k > 0, panel.k == 0);
}

using Part = void (*)(const Panel&, const float*, const Scratch&, float*, int64_t, bool, Ahead);

template <size_t... N>
static Part part_of(int64_t rows, std::index_sequence<N...>) {
    static constexpr Part PARTS[] = {part<N + 1>...};
    return PARTS[rows - 1];
}

// What to prefetch during one of several passes over a panel of weights: half of the next panel, which follows in
// memory, in each of the first two passes. A single pass is limited by memory bandwidth and prefetches its own weights.
static Ahead ahead(const Panel& panel, int64_t pass, int64_t passes) {
    if (passes == 1) return {panel.weight() + 2048, 0};
    return {panel.weight() + panel.bytes() + pass * panel.bytes() / 2, pass < 2 ? 1 : -1};
}

static void multiply(const Product& p, const float* x, Scratch& scratch, float* y, int64_t rows, bool add) {
    if (p.scale) round(x, scratch, rows, p.inputs);
#ifdef TILES
    if (tiles::READY && !p.scale && rows >= tiles::PAY) return multiply_by_tiles(p, x, scratch, y, rows, add);
#endif
    int64_t most = p.scale ? BYTE_ROWS : ROWS, passes = (rows + most - 1) / most;
    int64_t slice = p.scale || passes == 1 ? p.inputs : std::min(SLICE, p.inputs);  // inputs at a time
#pragma omp for schedule(static)
    for (int64_t first = 0; first < p.outputs; first += LANES)
        for (int64_t k = 0; k < p.inputs; k += slice) {
            Panel panel = {p, first, k, std::min(slice, p.inputs - k)};
            for (int64_t pass = 0; pass < passes; pass++) {
                int64_t at = pass * rows / passes, count = (pass + 1) * rows / passes - at;
                Part part = part_of(count, std::make_index_sequence<std::max(ROWS, BYTE_ROWS)>());
                part(panel, x, scratch, y, at, add, ahead(panel, pass, passes));
            }
        }
}
