// A few new tokens through one layer of a Transformer, in one call. With few tokens the time goes into reading the
// weights and into calling operations one by one; here the calls are gone, and weights may be bytes.
// Plain loops wherever they do: the compiler makes vector instructions of them, whatever the machine. See native.py.

#include "native_choosing.h"
#include "native_products.h"

extern "C" {

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

// The tokens that are computed: all of a grid, or the `real` ones, where the others only fill it up.
struct Tokens {
    int64_t count;
    const int64_t* real;  // their places in the grid
    int64_t place(int64_t r) const { return real ? real[r] : r; }
};

static void gather(const Tokens& tokens, const float* grid, float* x, int64_t width) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < tokens.count; r++) std::copy_n(grid + tokens.place(r) * width, width, x + r * width);
}

static void scatter(const Tokens& tokens, const float* x, float* grid, int64_t width) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < tokens.count; r++) std::copy_n(x + r * width, width, grid + tokens.place(r) * width);
}

// Put the keys and values behind the queries in `all` into the cache; rotate queries and keys.
static void remember(
    const Look& look, float* all, const Keys& keys, const Tokens& these, int64_t tokens, const int64_t* first
) {
    int64_t heads = look.heads, groups = look.groups, width = look.width, each = (heads + 2 * groups) * width;
#pragma omp for collapse(2) schedule(static)
    for (int64_t r = 0; r < these.count; r++)
        for (int64_t g = 0; g < groups; g++) {
            int64_t row = these.place(r) / tokens, token = these.place(r) % tokens;
            float *q = all + r * each + g * (heads / groups) * width, *k = all + r * each + (heads + g) * width;
            if (look.frequencies) {
                float position = static_cast<float>(first[row] + token);
                for (int64_t h = 0; h < heads / groups; h++) rotate(q + h * width, look.frequencies, width, position);
                rotate(k, look.frequencies, width, position);
            }
            int64_t place = row * keys.sentence + g * keys.head + (keys.length + token) * keys.key;
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
    const Tokens& these, int64_t shared, int64_t fresh, bool causal
) {
    int64_t heads = look.heads, width = look.width;
#pragma omp for collapse(2) schedule(static)
    for (int64_t r = 0; r < these.count; r++)
        for (int64_t h = 0; h < heads; h++) {
            thread_local Floats buffer;
            int64_t sentence = these.place(r) / shared, token = these.place(r) % shared;
            int64_t count = keys.length + (causal ? token + 1 : fresh);
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
                float score = mask && !mask[j] ? -1e30f : dot(query, keys.k + place(j), width) * look.scale;
                weights[j] = score + (extra ? extra[j] : 0.0f);
                best = std::max(best, weights[j]);
            }
            for (int64_t j = 0; j < count; j++) weights[j] = weights[j] <= -1e30f ? 0.0f : std::exp(weights[j] - best);
            for (int64_t j = 0; j < count; j++) total += weights[j];
            float* out = y + (r * heads + h) * width;
            std::fill(out, out + width, 0.0f);
            for (int64_t j = 0; j < count; j++) {
                if (weights[j] == 0.0f) continue;  // there may be no value at all
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

// `grid` holds `tokens` new tokens of each of `rows` hypotheses, and then the result. `own` has room for their keys. All
// tokens are computed, or only the `reals` ones whose places are in `real`.
extern "C" void layer_step(
    const Layer* layer, float* grid, int64_t rows, int64_t tokens, const Keys* own, const Bias* bias,
    const int64_t* first, const Keys* memory, int64_t sentences, int32_t causal, const int64_t* real, int64_t reals
) {
    const Layer& l = *layer;
    Tokens these = {real ? reals : rows * tokens, real};
    int64_t count = these.count, width = l.own.in.inputs, hidden = l.feed.up.outputs;
    thread_local Floats floats;
    thread_local Scratch scratch_of_thread;
    Scratch& scratch = scratch_of_thread;
    floats.resize(count * (2 * width + l.own.in.outputs + l.own.out.inputs + 2 * hidden));
    float *h = floats.data(), *all = h + count * width, *y = all + count * l.own.in.outputs;
    float *up = y + count * l.own.out.inputs, *gate = up + count * hidden;
    float* x = real ? gate + count * hidden : grid;
    scratch.reserve(count, std::max({width, l.own.out.inputs, hidden}));
#pragma omp parallel
    {
        if (real) gather(these, grid, x, width);
        // A branch reads the normalised x and adds to x (pre); or reads x, adds to it, and x is normalised (post).
        auto enter = [&](const Norm& norm) { if (l.pre) normalise(norm, x, h, count, width); return l.pre ? h : x; };
        auto leave = [&](const Norm& norm) { if (!l.pre) normalise(norm, x, x, count, width); };
        multiply(l.own.in, enter(l.own.norm), scratch, all, count, false);
        remember(l.own, all, *own, these, tokens, first);
        attend(l.own, all, l.own.in.outputs, *own, *bias, y, these, tokens, tokens, causal);
        multiply(l.own.out, y, scratch, x, count, true);
        leave(l.own.norm);
        if (l.looks_across) {
            multiply(l.cross.in, enter(l.cross.norm), scratch, all, count, false);
            attend(l.cross, all, l.cross.in.outputs, *memory, Bias{}, y, these, count / sentences, 0, false);
            multiply(l.cross.out, y, scratch, x, count, true);
            leave(l.cross.norm);
        }
        const float* read = enter(l.feed.norm);
        multiply(l.feed.up, read, scratch, up, count, false);
        if (l.feed.gated) multiply(l.feed.gate, read, scratch, gate, count, false);
        ACTIVATE[l.feed.activation](l.feed.gated ? gate : up, l.feed.gated ? up : nullptr, count * hidden);
        multiply(l.feed.down, l.feed.gated ? gate : up, scratch, x, count, true);
        leave(l.feed.norm);
        if (real) scatter(these, x, grid, width);
    }
}

extern "C" void product(const Product* p, const float* x, float* y, int64_t rows) {
    thread_local Scratch scratch_of_thread;
    Scratch& scratch = scratch_of_thread;
    scratch.reserve(rows, p->inputs);
#pragma omp parallel
    multiply(*p, x, scratch, y, rows, false);
}

extern "C" int32_t has_tiles() { return tiles::READY; }
