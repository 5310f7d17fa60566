// y = x Wᵀ + b in float32 on the tile unit of newer CPUs (AMX). It multiplies bfloat16 numbers and adds in 32 bits,
// about 16 times as fast as vector instructions. A float32 has a mantissa of 24 bits, so it is exactly the sum of three
// bfloat16 of 8 bits each: x = x0 + x1 + x2 and w = w0 + w1 + w2. Of the nine products, the three smallest (x1 w2, x2
// w1 and x2 w2) are below the rounding of float32 and left out. The smaller ones of the other six are added first, so
// that rounding errors are no larger than in a sum of whole products.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tiles {
struct alignas(64) Line {
    uint16_t numbers[32];
};
}  // namespace tiles

#if defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TILES

namespace tiles {

constexpr int SIDE = 16, DEPTH = 32;  // a tile: 16 rows of 32 bfloat16, or 16 x 16 sums
constexpr int PIECE = SIDE * DEPTH;   // numbers in a tile
constexpr int STEP = 3 * PIECE;       // the three pieces of 16 rows and DEPTH inputs
constexpr int STRIDE = 64;            // bytes of a row of a tile
constexpr int64_t CHUNK = 128;        // inputs at a time: their pieces of a panel fill half the first-level cache
constexpr int64_t SLAB = 4 * CHUNK;   // inputs, and
constexpr int64_t MOST = 320;         // rows at a time: their pieces fill half the second-level cache
constexpr int64_t PAY = 96;           // rows from which tiles are faster than vectors

inline int64_t steps(int64_t inputs) { return (inputs + DEPTH - 1) / DEPTH; }
inline int64_t lines(int64_t rows, int64_t inputs) { return (rows + SIDE - 1) / SIDE * steps(inputs) * STEP / 32; }

// Whether the CPU has the unit and the system permits its use: the system must save more state for it.
inline bool allowed() {
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
inline const bool READY = allowed();

// Configures a thread's tiles, all of full size, during the lifetime of the object.
struct Use {
    Use() {
        struct alignas(64) {
            uint8_t palette, start, unused[14];
            uint16_t bytes[16];
            uint8_t rows[16];
        } shape = {1, 0, {}, {}, {}};
        for (int i = 0; i < 8; i++) shape.bytes[i] = STRIDE, shape.rows[i] = SIDE;
        _tile_loadconfig(&shape);
    }
    ~Use() { _tile_release(); }
};

// Split off the highest 8 bits of the mantissas; the remainder in x is exact.
inline __m512i cut(__m512& x) {
    __m512i high = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0xffff0000));
    x = _mm512_sub_ps(x, _mm512_castsi512_ps(high));
    return high;
}

// The pieces of two vectors, interleaved: even numbers from a, odd ones from b.
inline void cut_pairs(__m512 a, __m512 b, uint16_t* to, int64_t apart) {
    for (int piece = 0; piece < 3; piece++) {
        __m512i even = cut(a), odd = cut(b);
        _mm512_store_si512(to + piece * apart, _mm512_or_si512(odd, _mm512_srli_epi32(even, 16)));
    }
}

// 16 rows of x in pieces, DEPTH inputs at a time; missing rows and inputs become zeros.
inline void cut_rows(const float* x, int64_t rows, int64_t inputs, uint16_t* to) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (int64_t k = 0; k < inputs; k += DEPTH, to += STEP)
        for (int64_t r = 0; r < SIDE; r++) {
            int64_t left = r < rows ? inputs - k : 0;
            auto some = [&](int64_t from) {
                int64_t count = left - from;
                __mmask16 mask = count >= 16 ? 0xffff : count > 0 ? (1 << count) - 1 : 0;
                return _mm512_maskz_loadu_ps(mask, x + r * inputs + k + from);
            };
            __m512 low = some(0), high = some(16);
            __m512 a = _mm512_permutex2var_ps(low, even, high), b = _mm512_permutex2var_ps(low, odd, high);
            cut_pairs(a, b, to + r * DEPTH, PIECE);
        }
}

// A panel of weights, [inputs, 2 * SIDE], in pieces: for every DEPTH inputs three pairs of tiles.
inline void cut_panel(const float* weight, int64_t inputs, uint16_t* to) {
    constexpr int LANES = 2 * SIDE;
    for (int64_t k = 0; k < inputs; k += DEPTH, to += 2 * STEP)
        for (int64_t pair = 0; pair < SIDE; pair++)
            for (int half : {0, 1}) {
                const float* at = weight + (k + 2 * pair) * LANES + half * SIDE;
                bool there = k + 2 * pair < inputs;  // the number of inputs is even
                __m512 a = there ? _mm512_loadu_ps(at) : _mm512_setzero_ps();
                __m512 b = there ? _mm512_loadu_ps(at + LANES) : _mm512_setzero_ps();
                cut_pairs(a, b, to + half * PIECE + pair * DEPTH, 2 * PIECE);
            }
}

// The sums of R times 16 rows for a panel; with `more`, added to `sums`. Tiles 0 to 3 hold sums, 4 and 5 pieces of x, 6
// and 7 pieces of the weights.
template <int R, class Ahead>
inline void sum(
    const uint16_t* x, int64_t apart, const uint16_t* panel, int64_t steps, float* sums, bool more, Ahead& ahead
) {
    asm volatile("" ::: "memory");  // compilers do not know that tile loads read memory written before
    auto rows = [&](int64_t k, int piece) {
        _tile_loadd(4, x + k * STEP + piece * PIECE, STRIDE);
        if (R == 2) {
            _tile_loadd(5, x + apart + k * STEP + piece * PIECE, STRIDE);
        }
    };
    auto weights = [&](int64_t k, int piece) {
        _tile_loadd(6, panel + 2 * (k * STEP + piece * PIECE), STRIDE);
        _tile_loadd(7, panel + 2 * (k * STEP + piece * PIECE) + PIECE, STRIDE);
    };
    auto multiply = [&] {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (R == 2) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        ahead.fetch();
    };
    constexpr int64_t BELOW = 2 * SIDE * SIDE, WIDE = 2 * SIDE * sizeof(float);
    if (more) {
        _tile_loadd(0, sums, WIDE);
        _tile_loadd(1, sums + SIDE, WIDE);
        if (R == 2) {
            _tile_loadd(2, sums + BELOW, WIDE);
            _tile_loadd(3, sums + BELOW + SIDE, WIDE);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < steps; k++) {  // in an order that uses most loaded tiles twice
        rows(k, 2), weights(k, 0), multiply();
        rows(k, 1), multiply();
        weights(k, 1), multiply();
        rows(k, 0), multiply();
        weights(k, 2), multiply();
    }
    for (int64_t k = 0; k < steps; k++) rows(k, 0), weights(k, 0), multiply();
    _tile_stored(0, sums, WIDE);
    _tile_stored(1, sums + SIDE, WIDE);
    if (R == 2) {
        _tile_stored(2, sums + BELOW, WIDE);
        _tile_stored(3, sums + BELOW + SIDE, WIDE);
    }
}

}  // namespace tiles
#else
namespace tiles {
constexpr bool READY = false;
inline int64_t lines(int64_t, int64_t) { return 0; }
}
#endif
