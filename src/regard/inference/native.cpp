// A few new tokens through one layer of a Transformer, in one call. With few tokens the time goes into reading the
// weights and into calling operations one by one; here the calls are gone, and weights may be bytes.
// Plain loops throughout: the compiler makes vector instructions of them, whatever the machine. See native.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif

extern "C" {

struct Product {  // y = x Wᵀ + b; W is float, or, with `scale` (one of each row) and `sum` (over each row), bytes
    const void* weight;  // [outputs / LANES, inputs, LANES], or [outputs / LANES, inputs / 4, LANES, 4]; then zeros
    const float *scale, *bias;
    const int32_t* sum;
    int64_t outputs, inputs;
};
struct Norm {
    const float *weight, *bias;
    float eps;
    int32_t centred;  // LayerNorm; else RMSNorm
};
struct Keys {  // keys and values of sentences; strides in numbers; `length` of them are there
    float *k, *v;
    int64_t sentence, head, key, length;
    const int64_t* ancestry;  // where each of the first `known` is: in which sentence's place
    int64_t known;
    const uint8_t* mask;  // 1: may look
    int64_t mask_row;
};
struct Bias {  // added to the scores
    const float* values;
    int64_t head, query;
};
struct Look {
    Norm norm;
    Product in, out;
    int64_t heads, groups, width;
    float scale;
    const float* frequencies;  // of rotary positions
};
struct Feed {
    Norm norm;
    Product up, gate, down;
    int32_t activation, gated;
};
struct Layer {
    Look own, cross;
    Feed feed;
    int32_t pre, looks_across;
};
}

using Floats = std::vector<float>;
constexpr int LANES = 32, HALF = LANES / 2;  // outputs that are computed side by side, in two vectors
typedef float FloatVector __attribute__((vector_size(4 * HALF)));
typedef int32_t IntVector __attribute__((vector_size(4 * HALF)));

template <class Vector>
static Vector load(const void* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

// Sums of R rows of x for LANES outputs, whose weights lie one after another.
template <int R>
static void block(const float* weight, const float* x, int64_t inputs, FloatVector (&sums)[R][2]) {
    for (int64_t k = 0; k < inputs; k++, weight += LANES) {
        __builtin_prefetch(weight + 512), __builtin_prefetch(weight + 512 + HALF);  // far enough ahead to be in time
        FloatVector low = load<FloatVector>(weight), high = load<FloatVector>(weight + HALF);
        for (int r = 0; r < R; r++) sums[r][0] += x[r * inputs + k] * low, sums[r][1] += x[r * inputs + k] * high;
    }
}

static IntVector fours(IntVector sums, const uint8_t* x, const int8_t* weight) {  // += x0 w0 + x1 w1 + x2 w2 + x3 w3
#ifdef __AVX512VNNI__
    int32_t same;
    std::memcpy(&same, x, 4);
    return (IntVector)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(same), _mm512_loadu_si512(weight));
#else
    for (int n = 0; n < HALF; n++)
        for (int i = 0; i < 4; i++) sums[n] += static_cast<int32_t>(x[i]) * static_cast<int32_t>(weight[4 * n + i]);
    return sums;
#endif
}

template <int R>
static void block(const int8_t* weight, const uint8_t* x, int64_t inputs, IntVector (&sums)[R][2]) {
    for (int64_t k = 0; k < inputs; k += 4, weight += 4 * LANES) {
        __builtin_prefetch(weight + 2048), __builtin_prefetch(weight + 2048 + 64);
        for (int r = 0; r < R; r++)
            for (int part : {0, 1}) sums[r][part] = fours(sums[r][part], x + r * inputs + k, weight + part * 4 * HALF);
    }
}

// What every product of a call may use: x as bytes, each row on a scale of its own.
struct Bytes {
    std::vector<uint8_t> x;
    Floats scale;
};

// Everything from here on is called by all threads of a team: each does its share, and they meet at the end.
static void round(const float* x, Bytes& bytes, int64_t rows, int64_t inputs) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float largest = 1e-37f;
        for (int64_t k = 0; k < inputs; k++) largest = std::max(largest, std::fabs(x[r * inputs + k]));
        bytes.scale[r] = largest / 127.0f;
        for (int64_t k = 0; k < inputs; k++)
            bytes.x[r * inputs + k] = static_cast<uint8_t>(std::nearbyint(x[r * inputs + k] / bytes.scale[r]) + 128.0f);
    }
}

// y = sums + bias, or y += that; of the last block, whose outputs may be fewer, as many as there are.
static void put(FloatVector sums, const float* bias, float* y, int64_t count, bool add) {
    size_t size = 4 * std::min<int64_t>(count, HALF);
    if (bias) sums += load<FloatVector>(bias);
    if (size == sizeof sums) {
        if (add) sums += load<FloatVector>(y);
        std::memcpy(y, &sums, sizeof sums);
    } else {
        FloatVector before = {};
        if (add) std::memcpy(&before, y, size);
        sums += before;
        std::memcpy(y, &sums, size);
    }
}

// R rows, from row `at` on, and the LANES outputs from `first` on.
template <int R>
static void part(const Product& p, const float* x, const Bytes& bytes, float* y, int64_t at, int64_t first, bool add) {
    FloatVector sums[R][2] = {};
    if (p.scale) {
        IntVector totals[R][2] = {};
        const int8_t* weight = static_cast<const int8_t*>(p.weight) + first * p.inputs;
        block<R>(weight, bytes.x.data() + at * p.inputs, p.inputs, totals);
        for (int half : {0, 1}) {
            FloatVector scale = load<FloatVector>(p.scale + first + half * HALF);
            IntVector excess = 128 * load<IntVector>(p.sum + first + half * HALF);
            for (int r = 0; r < R; r++)
                sums[r][half] = __builtin_convertvector(totals[r][half] - excess, FloatVector) * scale * bytes.scale[at + r];
        }
    } else {
        block<R>(static_cast<const float*>(p.weight) + first * p.inputs, x + at * p.inputs, p.inputs, sums);
    }
    for (int half : {0, 1}) {
        int64_t n = first + half * HALF, count = p.outputs - n;
        for (int r = 0; count > 0 && r < R; r++)
            put(sums[r][half], p.bias ? p.bias + n : nullptr, y + (at + r) * p.outputs + n, count, add);
    }
}

constexpr int ROWS = 8;  // at once: their sums stay in registers
static void (*const PARTS[ROWS])(const Product&, const float*, const Bytes&, float*, int64_t, int64_t, bool) = {
    part<1>, part<2>, part<3>, part<4>, part<5>, part<6>, part<7>, part<8>,
};

static void multiply(const Product& p, const float* x, Bytes& bytes, float* y, int64_t rows, bool add) {
    if (p.scale) round(x, bytes, rows, p.inputs);
#pragma omp for schedule(static)
    for (int64_t first = 0; first < p.outputs; first += LANES)
        for (int64_t at = 0; at < rows; at += ROWS)
            PARTS[std::min<int64_t>(rows - at, ROWS) - 1](p, x, bytes, y, at, first, add);
}

static void normalise(const Norm& norm, const float* x, float* y, int64_t rows, int64_t width) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float* from = x + r * width;
        float mean = 0.0f, square = 0.0f;
        if (norm.centred) {
            for (int64_t i = 0; i < width; i++) mean += from[i];
            mean /= width;
        }
        for (int64_t i = 0; i < width; i++) square += (from[i] - mean) * (from[i] - mean);
        float factor = 1.0f / std::sqrt(square / width + norm.eps);
        for (int64_t i = 0; i < width; i++)
            y[r * width + i] = (from[i] - mean) * factor * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f);
    }
}

static void rotate(float* head, const float* frequencies, int64_t width, float position) {
    for (int64_t i = 0; i < width / 2; i++) {
        float angle = position * frequencies[i], cosine = std::cos(angle), sine = std::sin(angle);
        float a = head[i], b = head[i + width / 2];
        head[i] = a * cosine - b * sine, head[i + width / 2] = b * cosine + a * sine;
    }
}

// Put the keys and values behind the queries in `all` into the cache; rotate queries and keys.
static void remember(const Look& look, float* all, const Keys& keys, int64_t rows, int64_t tokens, const int64_t* first) {
    int64_t heads = look.heads, groups = look.groups, width = look.width, each = (heads + 2 * groups) * width;
#pragma omp for collapse(2) schedule(static)
    for (int64_t r = 0; r < rows * tokens; r++)
        for (int64_t g = 0; g < groups; g++) {
            float *q = all + r * each + g * (heads / groups) * width, *k = all + r * each + (heads + g) * width;
            if (look.frequencies) {
                float position = static_cast<float>(first[r / tokens] + r % tokens);
                for (int64_t h = 0; h < heads / groups; h++) rotate(q + h * width, look.frequencies, width, position);
                rotate(k, look.frequencies, width, position);
            }
            int64_t place = r / tokens * keys.sentence + g * keys.head + (keys.length + r % tokens) * keys.key;
            std::copy(k, k + width, keys.k + place);
            std::copy(k + groups * width, k + (groups + 1) * width, keys.v + place);
        }
}

static float dot(const float* a, const float* b, int64_t count) {
    float total = 0.0f;
    for (int64_t i = 0; i < count; i++) total += a[i] * b[i];
    return total;
}

// softmax(q kᵀ · scale + bias) v. `shared` tokens look at the same keys, `length` of them and, of the `fresh` ones that
// came with them, all; or, if `causal`, those up to their own place.
static void attend(
    const Look& look, const float* q, int64_t apart, const Keys& keys, const Bias& bias, float* y,
    int64_t rows, int64_t shared, int64_t fresh, bool causal
) {
    int64_t heads = look.heads, width = look.width;
#pragma omp for collapse(2) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            thread_local Floats buffer;
            int64_t sentence = r / shared, token = r % shared, count = keys.length + (causal ? token + 1 : fresh);
            int64_t first = h / (heads / look.groups) * keys.head;
            auto place = [&](int64_t j) {
                int64_t from = j < keys.known ? keys.ancestry[sentence * keys.known + j] : sentence;
                return first + from * keys.sentence + j * keys.key;
            };
            const float* query = q + r * apart + h * width;
            const uint8_t* mask = keys.mask ? keys.mask + sentence * keys.mask_row : nullptr;
            const float* extra = bias.values ? bias.values + h * bias.head + token * bias.query : nullptr;
            buffer.resize(count);
            float* weights = buffer.data();
            float best = -1e30f, total = 0.0f;
            for (int64_t j = 0; j < count; j++) {
                weights[j] = dot(query, keys.k + place(j), width) * look.scale + (extra ? extra[j] : 0.0f);
                if (mask && !mask[j]) weights[j] = -1e30f;
                best = std::max(best, weights[j]);
            }
            for (int64_t j = 0; j < count; j++) weights[j] = weights[j] <= -1e30f ? 0.0f : std::exp(weights[j] - best);
            for (int64_t j = 0; j < count; j++) total += weights[j];
            float* out = y + (r * heads + h) * width;
            std::fill(out, out + width, 0.0f);
            for (int64_t j = 0; j < count; j++) {
                const float* value = keys.v + place(j);
                for (int64_t i = 0; i < width; i++) out[i] += weights[j] * value[i];
            }
            for (int64_t i = 0; i < width; i++) out[i] = total > 0.0f ? out[i] / total : 0.0f;
        }
}

template <int KIND>  // in the order of ACTIVATIONS in layers/blocks.py
static void activate(float* x, const float* factor, int64_t count) {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i++) {
        float v = x[i];
        if (KIND == 0) v = std::max(v, 0.0f);
        if (KIND == 1) v = 0.5f * v * (1.0f + std::erf(v * 0.70710678f));
        if (KIND == 2) v = v / (1.0f + std::exp(-1.59576912f * (v + 0.044715f * v * v * v)));  // (1 + tanh u) / 2 = σ(2u)
        if (KIND == 3) v = v / (1.0f + std::exp(-1.702f * v));
        if (KIND == 4) v = v / (1.0f + std::exp(-v));
        x[i] = factor ? v * factor[i] : v;
    }
}

static void (*const ACTIVATE[])(float*, const float*, int64_t) = {
    activate<0>, activate<1>, activate<2>, activate<3>, activate<4>,
};

// x holds `tokens` new tokens of each of `rows` hypotheses, and then the result. `own` has room for their keys.
extern "C" void layer_step(
    const Layer* layer, float* x, int64_t rows, int64_t tokens, const Keys* own, const Bias* bias,
    const int64_t* first, const Keys* memory, int64_t sentences, int32_t causal
) {
    const Layer& l = *layer;
    int64_t count = rows * tokens, width = l.own.in.inputs, hidden = l.feed.up.outputs;
    thread_local Floats scratch;
    thread_local Bytes bytes_of_thread;
    Bytes& bytes = bytes_of_thread;
    scratch.resize(count * (width + l.own.in.outputs + l.own.out.inputs + 2 * hidden));
    float *h = scratch.data(), *all = h + count * width, *y = all + count * l.own.in.outputs;
    float *up = y + count * l.own.out.inputs, *gate = up + count * hidden;
    bytes.scale.resize(count), bytes.x.resize(count * std::max({width, l.own.out.inputs, hidden}));
#pragma omp parallel
    {
        // A branch reads the normalised x and adds to x (pre); or reads x, adds to it, and x is normalised (post).
        auto enter = [&](const Norm& norm) { if (l.pre) normalise(norm, x, h, count, width); return l.pre ? h : x; };
        auto leave = [&](const Norm& norm) { if (!l.pre) normalise(norm, x, x, count, width); };
        multiply(l.own.in, enter(l.own.norm), bytes, all, count, false);
        remember(l.own, all, *own, rows, tokens, first);
        attend(l.own, all, l.own.in.outputs, *own, *bias, y, count, tokens, tokens, causal);
        multiply(l.own.out, y, bytes, x, count, true);
        leave(l.own.norm);
        if (l.looks_across) {
            multiply(l.cross.in, enter(l.cross.norm), bytes, all, count, false);
            attend(l.cross, all, l.cross.in.outputs, *memory, Bias{}, y, count, count / sentences, 0, false);
            multiply(l.cross.out, y, bytes, x, count, true);
            leave(l.cross.norm);
        }
        const float* read = enter(l.feed.norm);
        multiply(l.feed.up, read, bytes, up, count, false);
        if (l.feed.gated) multiply(l.feed.gate, read, bytes, gate, count, false);
        ACTIVATE[l.feed.activation](l.feed.gated ? gate : up, l.feed.gated ? up : nullptr, count * hidden);
        multiply(l.feed.down, l.feed.gated ? gate : up, bytes, x, count, true);
        leave(l.feed.norm);
    }
}

extern "C" void product(const Product* p, const float* x, float* y, int64_t rows) {
    thread_local Bytes bytes_of_thread;
    Bytes& bytes = bytes_of_thread;
    bytes.scale.resize(rows), bytes.x.resize(p->scale ? rows * p->inputs : 0);
#pragma omp parallel
    multiply(*p, x, bytes, y, rows, false);
}
