// The best continuations of hypotheses from their logits, in one pass over the logits: see decoding/candidates.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

struct Candidate {
    double total;  // double, because large logits cancel out
    int64_t origin, token;
};

// e^x for x <= 0, accurate to rounding: 2^n e^f with |f| <= ln 2 / 2, and e^f by its Taylor series (Horner). Inlined,
// because a library call per vector would take longer than the arithmetic.
static inline float exp_of_negative(float x) {
    float power = std::max(x, -87.0f) * 1.44269504f, whole = std::nearbyint(power), f = (power - whole) * 0.69314718f;
    float third = 1 / 6.0f + f * (1 / 24.0f + f * (1 / 120.0f + f / 720.0f));  // from the third-order term on
    float series = 1.0f + f * (1.0f + f * (1 / 2.0f + f * third));
    int32_t bits = (static_cast<int32_t>(whole) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return series * scale;
}

constexpr int64_t BLOCK = 64;  // logits per block; the maximum of each block is stored

// log Σ exp (x - top) of a row.
static float log_sum_exp(const float* x, int64_t count, float top) {
    float sum = 0.0f;
    for (int64_t i = 0; i < count; i++) sum += exp_of_negative(x[i] - top);
    return std::log(sum);
}

static void find_greatest(const float* x, int64_t count, std::vector<float>& greatest) {
    greatest.resize((count + BLOCK - 1) / BLOCK);
    for (size_t block = 0; block < greatest.size(); block++) {
        const float* from = x + block * BLOCK;
        int64_t length = std::min<int64_t>(BLOCK, x + count - from);
        float most = from[0];
        for (int64_t i = 1; i < length; i++) most = std::max(most, from[i]);
        greatest[block] = most;
    }
}

// Insert a candidate into the sorted list of the best so far.
static void insert(std::vector<Candidate>& best, size_t most, Candidate candidate) {
    if (best.size() == most) best.pop_back();
    auto behind = [](const Candidate& a, const Candidate& b) { return a.total > b.total; };
    best.insert(std::upper_bound(best.begin(), best.end(), candidate, behind), candidate);
}

// Add the `most` best tokens of a row to those of its sentence. Blocks whose maximum is too small are skipped.
static void choose_from_row(
    const float* x, int64_t vocab, float before, int64_t origin, const std::vector<bool>& forbidden, size_t most,
    std::vector<Candidate>& best
) {
    thread_local std::vector<float> greatest;
    find_greatest(x, vocab, greatest);
    float top = *std::max_element(greatest.begin(), greatest.end());
    double plus = static_cast<double>(before) - log_sum_exp(x, vocab, top) - top;
    auto total = [&](float logit) { return logit + plus; };
    for (size_t block = 0; block < greatest.size(); block++) {
        if (best.size() == most && !(total(greatest[block]) > best.back().total)) continue;
        for (int64_t i = block * BLOCK; i < std::min<int64_t>((block + 1) * BLOCK, vocab); i++)
            if (!forbidden[i] && (best.size() < most || total(x[i]) > best.back().total))
                insert(best, most, {total(x[i]), origin, i});
    }
}

// Returns the number of sentences that have fewer than `most` candidates, or a score of -inf or NaN among them.
extern "C" int64_t choose_best(
    const float* logits, const float* totals, int64_t sentences, int64_t width, int64_t vocab,
    const int64_t* banned, int64_t bans, int64_t most, float* total, int64_t* origin, int64_t* token
) {
    constexpr float NOTHING = -1e30f;
    std::vector<bool> forbidden(vocab, false);
    for (int64_t i = 0; i < bans; i++) forbidden[banned[i]] = true;
    int64_t short_of = 0;
#pragma omp parallel for schedule(static) reduction(+ : short_of)
    for (int64_t s = 0; s < sentences; s++) {
        thread_local std::vector<Candidate> best;
        best.clear();
        for (int64_t w = 0; w < width; w++)
            if (totals[s * width + w] > NOTHING)
                choose_from_row(
                    logits + (s * width + w) * vocab, vocab, totals[s * width + w], w, forbidden, most, best);
        if (static_cast<int64_t>(best.size()) < most || !(best.back().total > NOTHING)) {
            short_of++;
            continue;
        }
        for (int64_t i = 0, to = s * most; i < most; i++, to++)
            total[to] = best[i].total, origin[to] = best[i].origin, token[to] = best[i].token;
    }
    return short_of;
}
