// Checks the compiled products of one level of instructions against plain loops. `make processors` compiles it for every
// level and runs it on this CPU or in an emulator; see run.py.

#include <cstdio>
#include <random>

#include "../../src/regard/runtime/native.cpp"

static std::mt19937 generator(1);

// Weights in the layout of linear.py: LANES outputs interleaved, for every input or for every four bytes.
template <class Weight>
static std::vector<Weight> laid_out(const std::vector<Weight>& weight, int64_t outputs, int64_t inputs) {
    constexpr int64_t STEP = 4 / sizeof(Weight);
    int64_t whole = (outputs + LANES - 1) / LANES * LANES;
    std::vector<Weight> blocks(whole * inputs);
    for (int64_t n = 0; n < outputs; n++)
        for (int64_t k = 0; k < inputs; k++)
            blocks[n / LANES * LANES * inputs + k / STEP * LANES * STEP + n % LANES * STEP + k % STEP] =
                weight[n * inputs + k];
    return blocks;
}

template <class Number>
static std::vector<Number> padded(std::vector<Number> numbers) {
    numbers.resize(numbers.size() + LANES);
    return numbers;
}

enum Kind { RANDOM, LARGEST, SMALLEST_SUMS, ALTERNATING, KINDS };

static float number(Kind kind, int64_t k, bool is_weight) {
    if (kind == RANDOM) return std::uniform_real_distribution<float>(-127.0f, 127.0f)(generator);
    if (kind == ALTERNATING) return k % 2 ? 127.0f : -127.0f;
    return kind == SMALLEST_SUMS && is_weight ? -127.0f : 127.0f;
}

static bool bytes_are_exact(Kind kind, int64_t rows, int64_t outputs, int64_t inputs) {
    std::vector<int8_t> weight(outputs * inputs);
    std::vector<int32_t> sums(outputs);
    Floats scale(outputs, 1.0f), x(rows * inputs), y(rows * outputs);
    for (int64_t i = 0; i < outputs * inputs; i++) {
        weight[i] = static_cast<int8_t>(std::lrint(number(kind, i % inputs, true)));
        sums[i / inputs] += weight[i];
    }
    for (int64_t i = 0; i < rows * inputs; i++) x[i] = std::rint(number(kind, i % inputs, false));
    for (int64_t r = 0; r < rows; r++) x[r * inputs] = 127.0f;  // so that the scale of x is 1
    auto blocks = laid_out(weight, outputs, inputs);
    auto scales = padded(scale);
    auto totals = padded(sums);
    Product p = {blocks.data(), scales.data(), nullptr, totals.data(), outputs, inputs};
    product(&p, x.data(), y.data(), rows);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < outputs; n++) {
            int64_t exact = 0;
            for (int64_t k = 0; k < inputs; k++) exact += weight[n * inputs + k] * static_cast<int64_t>(x[r * inputs + k]);
            if (y[r * outputs + n] != static_cast<float>(exact)) {
                std::printf("bytes, kind %d: row %ld of %ld, output %ld of %ld, %ld inputs: %.1f, not %ld\n", kind,
                            (long)r, (long)rows, (long)n, (long)outputs, (long)inputs, y[r * outputs + n], (long)exact);
                return false;
            }
        }
    return true;
}

static bool floats_are_close(int64_t rows, int64_t outputs, int64_t inputs) {
    Floats weight(outputs * inputs), bias(outputs), x(rows * inputs), y(rows * outputs);
    for (Floats* some : {&weight, &bias, &x})
        for (float& each : *some) each = number(RANDOM, 0, false) / 127.0f;
    auto blocks = laid_out(weight, outputs, inputs);
    auto biases = padded(bias);
    Product p = {blocks.data(), nullptr, biases.data(), nullptr, outputs, inputs};
    product(&p, x.data(), y.data(), rows);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < outputs; n++) {
            double exact = bias[n], size = 1.0;
            for (int64_t k = 0; k < inputs; k++) {
                double term = static_cast<double>(weight[n * inputs + k]) * x[r * inputs + k];
                exact += term, size += std::fabs(term);
            }
            if (!(std::fabs(y[r * outputs + n] - exact) < 1e-6 * size)) {
                std::printf("fp32: row %ld of %ld, output %ld of %ld, %ld inputs: %g, not %g\n", (long)r, (long)rows,
                            (long)n, (long)outputs, (long)inputs, y[r * outputs + n], exact);
                return false;
            }
        }
    return true;
}

int main() {
    int64_t checked = 0;
    for (int64_t outputs : {4, 31, 64, 70})
        for (int64_t inputs : {4, 36, 132, 1028})
            for (int64_t rows : {1, 2, 3, 5, 6, 8, 9, 17, 100}) {
                for (int kind = 0; kind < KINDS; kind++, checked++)
                    if (!bytes_are_exact(static_cast<Kind>(kind), rows, outputs, inputs)) return 1;
                if (!floats_are_close(rows, outputs, inputs)) return 1;
            }
    std::printf("%d-bit vectors, bytes by %s: %ld products exact\n", vector_bits(), bytes_by(), (long)checked);
    return 0;
}
