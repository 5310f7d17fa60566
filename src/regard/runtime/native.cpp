// Computes a few new tokens through one layer of a Transformer in one call. With few tokens, most time goes into
// reading weights and calling operations. Here there is one call, and weights may be int8. Most code is plain loops,
// which the compiler vectorises for any machine. See compiled.py.

#include "native_candidates.h"
#include "native_products.h"

#ifdef __linux__
#include <atomic>
#include <omp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern "C" {

struct Norm {
    const float *weight, *bias;
    float eps;
    int32_t centred;  // 1: LayerNorm, 0: RMSNorm
};
struct Keys {  // keys and values of sentences; strides count floats; `length` keys are present
    float *k, *v;
    int64_t sentence, head, key, length;
    const int64_t* ancestry;  // for the first `known` keys: the sentence whose storage holds each
    int64_t known;
    const uint8_t* mask;  // 1: the key may be attended to
    int64_t mask_row;
    const int64_t* rows;  // the sentence of each row of queries; null: row i attends to sentence i
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

// Waiting threads spin, so two threads on one CPU keep waiting for the end of each other's time slice. The scheduler of
// a virtual machine may wake a thread on the CPU of the thread that woke it, and pull it back after it has moved. So a
// thread that finds another thread of its team on its CPU moves to another one, and stays off this CPU until it meets a
// thread again.
class Apart {
public:
#ifdef __linux__
    Apart() : caller(this_thread()), taken(bit(sched_getcpu())) {}
    void keep() {
        if (omp_get_thread_num() == 0) return;  // the calling thread stays
        int here = sched_getcpu();
        if (!(taken.fetch_or(bit(here)) & bit(here))) return;
        cpu_set_t elsewhere;
        if (sched_getaffinity(caller, sizeof elsewhere, &elsewhere)) return;
        CPU_CLR(here, &elsewhere);
        if (CPU_COUNT(&elsewhere)) sched_setaffinity(0, sizeof elsewhere, &elsewhere);
    }

private:
    static pid_t this_thread() {
        static thread_local pid_t number = static_cast<pid_t>(syscall(SYS_gettid));
        return number;
    }
    static uint64_t bit(int processor) { return 0 <= processor && processor < 64 ? uint64_t{1} << processor : 0; }

    pid_t caller;
    std::atomic<uint64_t> taken;  // CPUs in use, of the first 64
#else
    void keep() {}
#endif
};

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

// The tokens to compute: all of a grid or, with padding, only the `real` ones.
struct Tokens {
    int64_t count;
    const int64_t* real;  // their positions in the grid
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

// Rotate queries and keys, and write the keys and values that follow the queries in `all` to the cache.
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

// e^x for x <= 0, as 2^n 2^r. The error is 1e-7 near 0, where softmax weights are large, and 4e-6 for the smallest.
// Compilers vectorise a loop over it, which they cannot always do with the library's function.
static inline float exponential(float x) {
    float twos = std::max(x * 1.44269504f, -125.0f), whole = std::nearbyint(twos), rest = twos - whole;
    float power = 1.535336188e-4f;  // coefficients of 2^r, |r| <= 1/2
    for (float c : {1.339887440e-3f, 9.618437358e-3f, 5.550332471e-2f, 2.402264791e-1f, 6.931472029e-1f, 1.0f})
        power = power * rest + c;
    int32_t bits = (static_cast<int32_t>(whole) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return power * scale;
}

constexpr int64_t TOGETHER = 4;  // keys whose sums are computed in parallel, to hide the latency of additions

// The keys that a token attends to: their positions and weights. The list is padded to a multiple of TOGETHER by
// repeating the first key with a bias that makes its weight 0.
struct Seen {
    std::vector<int64_t> places;
    Floats weights;
    int64_t count;
    void clear(int64_t most) {
        places.resize(most + TOGETHER), weights.resize(most + TOGETHER);
        count = 0;
    }
    void add(int64_t place, float bias) { places[count] = place, weights[count++] = bias; }
    int64_t fill() {
        int64_t full = (count + TOGETHER - 1) / TOGETHER * TOGETHER;
        for (int64_t j = count; j < full; j++) places[j] = places[0], weights[j] = -1e30f;
        return full;
    }
};

// softmax(query · k · scale + bias) v over the keys in `seen`, whose weights hold the biases at first.
static void look_at(Seen& seen, const float* query, const Keys& keys, float scale, float* out, int64_t width) {
    int64_t full = seen.fill();
    float *weights = seen.weights.data(), best = -1e30f, total = 0.0f;
    const int64_t* places = seen.places.data();
    for (int64_t j = 0; j < full; j += TOGETHER) {
        const float *a = keys.k + places[j], *b = keys.k + places[j + 1];
        const float *c = keys.k + places[j + 2], *d = keys.k + places[j + 3];
        float of_a = 0.0f, of_b = 0.0f, of_c = 0.0f, of_d = 0.0f;
        for (int64_t i = 0; i < width; i++)
            of_a += query[i] * a[i], of_b += query[i] * b[i], of_c += query[i] * c[i], of_d += query[i] * d[i];
        weights[j] += of_a * scale, weights[j + 1] += of_b * scale;
        weights[j + 2] += of_c * scale, weights[j + 3] += of_d * scale;
    }
    for (int64_t j = 0; j < full; j++) best = std::max(best, weights[j]);
    for (int64_t j = 0; j < full; j++) weights[j] = weights[j] <= -1e30f ? 0.0f : exponential(weights[j] - best);
    for (int64_t j = 0; j < full; j++) total += weights[j];
    for (int64_t j = 0; j < full; j++) weights[j] = total > 0.0f ? weights[j] / total : 0.0f;
    std::fill(out, out + width, 0.0f);
    for (int64_t j = 0; j < full; j += TOGETHER) {
        const float *a = keys.v + places[j], *b = keys.v + places[j + 1];
        const float *c = keys.v + places[j + 2], *d = keys.v + places[j + 3];
        float of_a = weights[j], of_b = weights[j + 1], of_c = weights[j + 2], of_d = weights[j + 3];
        for (int64_t i = 0; i < width; i++) out[i] += of_a * a[i] + of_b * b[i] + of_c * c[i] + of_d * d[i];
    }
}

// softmax(q kᵀ · scale + bias) v. `shared` tokens attend to the same keys: to `length` cached keys, and to all `fresh`
// new ones or, if `causal`, to those up to their own position. Masked keys may have undefined values. The weights are
// also written to `told` [tokens, heads, keys] if it is given.
static void attend(
    const Look& look, const float* q, int64_t apart, const Keys& keys, const Bias& bias, float* y,
    const Tokens& these, int64_t shared, int64_t fresh, bool causal, float* told
) {
    int64_t heads = look.heads, width = look.width;
#pragma omp for collapse(2) schedule(static)
    for (int64_t r = 0; r < these.count; r++)
        for (int64_t h = 0; h < heads; h++) {
            thread_local Seen seen;
            int64_t sentence = these.place(r) / shared, token = these.place(r) % shared;
            int64_t count = keys.length + (causal ? token + 1 : fresh);
            int64_t first = h / (heads / look.groups) * keys.head;
            int64_t owner = keys.rows ? keys.rows[sentence] : sentence;
            const uint8_t* mask = keys.mask ? keys.mask + owner * keys.mask_row : nullptr;
            const float* extra = bias.values ? bias.values + h * bias.head + token * bias.query : nullptr;
            seen.clear(count);
            for (int64_t j = 0; j < count; j++) {
                if (mask && !mask[j]) continue;
                int64_t from = j < keys.known ? keys.ancestry[sentence * keys.known + j] : owner;
                seen.add(first + from * keys.sentence + j * keys.key, extra ? extra[j] : 0.0f);
            }
            look_at(seen, q + r * apart + h * width, keys, look.scale, y + (r * heads + h) * width, width);
            if (told) {
                float* row = told + (r * heads + h) * count;
                for (int64_t j = 0, next = 0; j < count; j++) row[j] = mask && !mask[j] ? 0.0f : seen.weights[next++];
            }
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

// `grid` holds `tokens` new tokens of each of `rows` hypotheses, and receives the result. `own` has space for their
// keys. All tokens are computed, or only the `reals` tokens whose positions are in `real`. `told`, if given, receives the
// weights of cross-attention.
extern "C" void layer_step(
    const Layer* layer, float* grid, int64_t rows, int64_t tokens, const Keys* own, const Bias* bias,
    const int64_t* first, const Keys* memory, int64_t sentences, int32_t causal, const int64_t* real, int64_t reals,
    float* told
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
    Apart apart;
#pragma omp parallel
    {
        apart.keep();
        if (real) gather(these, grid, x, width);
        // Pre-norm: a branch reads the normalised x and adds to x. Post-norm: it reads x and adds to it, then x is
        // normalised.
        auto enter = [&](const Norm& norm) { if (l.pre) normalise(norm, x, h, count, width); return l.pre ? h : x; };
        auto leave = [&](const Norm& norm) { if (!l.pre) normalise(norm, x, x, count, width); };
        multiply(l.own.in, enter(l.own.norm), scratch, all, count, false);
        remember(l.own, all, *own, these, tokens, first);
        attend(l.own, all, l.own.in.outputs, *own, *bias, y, these, tokens, tokens, causal, nullptr);
        multiply(l.own.out, y, scratch, x, count, true);
        leave(l.own.norm);
        if (l.looks_across) {
            multiply(l.cross.in, enter(l.cross.norm), scratch, all, count, false);
            attend(l.cross, all, l.cross.in.outputs, *memory, Bias{}, y, these, count / sentences, 0, false, told);
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
    Apart apart;
#pragma omp parallel
    {
        apart.keep();
        multiply(*p, x, scratch, y, rows, false);
    }
}

extern "C" int32_t has_tiles() { return tiles::READY; }
extern "C" int32_t vector_bits() { return 32 * WIDE; }
extern "C" const char* bytes_by() { return BYTES_BY; }  // how int8 numbers are multiplied
